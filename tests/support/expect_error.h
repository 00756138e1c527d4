// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "ladder/core/error.h"

namespace ladder {

// Expects all texts in a message, and in one of this project a hint or the list of the choices. (A
// ChildError repeats the last line of its child, which has the hint.)
template <typename Type>
void expect_message(const std::string& message, std::initializer_list<std::string> texts) {
  for (const auto& text : texts) {
    EXPECT_NE(message.find(text), std::string::npos)
        << "expected: " << text << "\nthe message is: " << message;
  }
  constexpr bool kNeedsHint = std::is_base_of_v<Error, Type> && !std::is_same_v<ChildError, Type>;
  const bool has_hint = message.find("; hint: ") != std::string::npos;
  if (!kNeedsHint || has_hint || message.find("expected one of ") != std::string::npos) return;
  ADD_FAILURE() << "no hint: " << message;
}

}  // namespace ladder

// Expects `statement` to throw exactly a `Type` whose message contains each of the texts: its
// beginning, and where the hint is written there, the hint. Each of our errors must have a hint.
#define EXPECT_ERROR(statement, Type, ...)                                            \
  do {                                                                                \
    try {                                                                             \
      statement;                                                                      \
      ADD_FAILURE() << "expected " #Type ", but nothing was thrown";                  \
    } catch (const Type& error) {                                                     \
      ladder::expect_message<Type>(error.what(), {__VA_ARGS__});                      \
    } catch (const std::exception& error) {                                           \
      ADD_FAILURE() << "expected " #Type ", got another exception: " << error.what(); \
    }                                                                                 \
  } while (false)
