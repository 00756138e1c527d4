// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

// Expects `statement` to throw exactly a `Type` whose message contains `text`.
#define EXPECT_ERROR(statement, Type, text)                                           \
  do {                                                                                \
    try {                                                                             \
      statement;                                                                      \
      ADD_FAILURE() << "expected " #Type ", but nothing was thrown";                  \
    } catch (const Type& error) {                                                     \
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos)              \
          << "the message is: " << error.what();                                      \
    } catch (const std::exception& error) {                                           \
      ADD_FAILURE() << "expected " #Type ", got another exception: " << error.what(); \
    }                                                                                 \
  } while (false)
