// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>

#include "ladder/comm/init_process_group.h"
#include "ladder/comm/process_group.h"
#include "ladder/core/device.h"
#include "ladder/core/error.h"
#include "ladder/launch/spawn.h"

namespace ladder {

// Tests of code that runs on several ranks: real processes, started by spawn.
//
// The process of the test must not run a tensor operation: it would get LibTorch's threads, and
// spawn refuses to fork those. So everything with tensors stands inside the ranks:
//
//     run_ranks(3, [](const ProcessGroup& group) {
//       auto sum = torch::tensor({group.rank()});
//       group.all_reduce(sum);
//       EXPECT_EQ(sum.item<int>(), 3);
//     });
//
// A failed expectation in a rank fails the test. What ranks write to their standard error is
// shown only when they end otherwise than expected.

// Many times what a group of a test needs.
constexpr std::chrono::milliseconds kTimeout{20'000};

struct RanksOptions {
  std::string backend = "gloo";
  std::chrono::milliseconds timeout = kTimeout;  // of the group
  std::chrono::milliseconds grace{2'000};        // see SpawnOptions
};

// How a call of spawn ended.
struct RanksEnd {
  int exit_code = 0;
  std::string error;     // what spawn threw, or ""
  std::string messages;  // what all ranks wrote to their standard error
};

// A file without a name: takes any amount, unlike a pipe that nobody empties.
class MessageFile {
 public:
  MessageFile() : file_(std::tmpfile()) {
    if (file_ == nullptr) throw std::runtime_error("tmpfile failed");
  }
  ~MessageFile() { std::fclose(file_); }
  MessageFile(const MessageFile&) = delete;
  MessageFile& operator=(const MessageFile&) = delete;

  int fd() const { return fileno(file_); }

  std::string text() const {
    std::string text;
    std::rewind(file_);
    for (int c = std::fgetc(file_); c != EOF; c = std::fgetc(file_)) text += static_cast<char>(c);
    return text;
  }

 private:
  std::FILE* file_;
};

inline int failed_expectations() {
  const auto& result = *testing::UnitTest::GetInstance()->current_test_info()->result();
  int failed = 0;
  for (int i = 0; i < result.total_part_count(); ++i) {
    if (result.GetTestPartResult(i).failed()) ++failed;
  }
  return failed;
}

// Runs `fn(rank)` in `count` processes with one thread each, without a group.
inline RanksEnd end_of_ranks(int count, const std::function<void(int rank)>& fn,
                             std::chrono::milliseconds grace = RanksOptions().grace) {
  const MessageFile messages;
  RanksEnd end;
  const auto checked = [&](int rank) {
    const testing::ScopedTrace trace("", 0, "rank " + std::to_string(rank));
    const int before = failed_expectations();
    prepare_process({.requested = 1});
    fn(rank);
    if (failed_expectations() > before) throw std::runtime_error("an expectation failed");
  };
  try {
    spawn(checked, {.nprocs = count, .grace = grace, .stderr_fd = messages.fd()});
  } catch (const Error& error) {
    end = {static_cast<int>(error.exit_code()), error.what(), ""};
  }
  end.messages = messages.text();
  return end;
}

// Fails the test unless all ranks ended well.
inline void expect_well(const RanksEnd& end,
                        std::source_location caller = std::source_location::current()) {
  if (end.error.empty()) return;
  ADD_FAILURE_AT(caller.file_name(), static_cast<int>(caller.line()))
      << end.error << "\nthe ranks wrote:\n"
      << end.messages;
}

// Expects an exit code and a text that a rank wrote.
inline void expect_ended_with(const RanksEnd& end, int exit_code, const std::string& text) {
  EXPECT_EQ(end.exit_code, exit_code) << end.error;
  EXPECT_NE(end.messages.find(text), std::string::npos)
      << "expected: " << text << "\nthe ranks wrote:\n"
      << end.messages;
}

// Runs `fn` on all ranks of a group.
inline RanksEnd end_of_group(int world_size, const std::function<void(const ProcessGroup&)>& fn,
                             const RanksOptions& options = {}) {
  const auto in_group = [&](int /*rank*/) {
    fn(init_process_group({.backend = options.backend, .timeout = options.timeout}));
  };
  return end_of_ranks(world_size, in_group, options.grace);
}

// The same, and fails the test unless all ranks end well.
inline void run_ranks(int world_size, const std::function<void(const ProcessGroup&)>& fn,
                      const RanksOptions& options = {},
                      std::source_location caller = std::source_location::current()) {
  expect_well(end_of_group(world_size, fn, options), caller);
}

// Runs `fn` in one process of its own, without a group: for code that starts threads. Under
// ThreadSanitizer in this one: it has a thread in every process, and spawn refuses those with two.
inline void run_alone(const std::function<void()>& fn,
                      std::source_location caller = std::source_location::current()) {
#ifdef __SANITIZE_THREAD__
  prepare_process({.requested = 1});
  fn();
  static_cast<void>(caller);
#else
  expect_well(end_of_ranks(1, [&](int /*rank*/) { fn(); }), caller);
#endif
}

// Makes this rank one that nobody launched.
inline void forget_launcher() {
  if (const char* listening = getenv("LADDER_LISTEN_FD")) close(std::stoi(listening));
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                           "MASTER_PORT", "LADDER_LISTEN_FD"}) {
    unsetenv(name);
  }
}

}  // namespace ladder

// A test whose body is run_ranks's `fn`, with the name `group`.
#define TEST_ON_RANKS(suite, name, world_size)                                    \
  static void suite##_##name([[maybe_unused]] const ladder::ProcessGroup& group); \
  TEST(suite, name) { ladder::run_ranks(world_size, suite##_##name); }            \
  static void suite##_##name([[maybe_unused]] const ladder::ProcessGroup& group)

// A test whose body is run_alone's `fn`.
#define TEST_ALONE(suite, name)                            \
  static void suite##_##name();                            \
  TEST(suite, name) { ladder::run_alone(suite##_##name); } \
  static void suite##_##name()
