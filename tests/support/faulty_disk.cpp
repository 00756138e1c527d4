// SPDX-License-Identifier: Apache-2.0
//
// A library for LD_PRELOAD: it kills a program, or refuses, at the call of its choice that changes
// files below one folder. Only rank 0 counts. Read from the environment:
//
//   FAULTY_DISK_FOLDER  a part of the paths that count
//   FAULTY_DISK_AT      the call that fails, counted from 1; 0 = none
//   FAULTY_DISK_ERRNO   what it and all writes after it return; 0 = SIGKILL instead of the call
//   FAULTY_DISK_SLEEP   milliseconds that each fsync takes
#include <atomic>
#include <cstdlib>
#include <ctime>

#include "tests/support/counted_calls.h"

namespace ladder {
namespace {

std::string_view variable(const char* name, const char* otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : text;
}

bool counts(std::string_view path) {
  const auto folder = variable("FAULTY_DISK_FOLDER", "");
  return !folder.empty() && path.find(folder) != std::string_view::npos &&
         variable("RANK", "0") == "0";
}

// Signals do not shorten it, as they do not shorten the work of a disk.
void sleep_for(int milliseconds) {
  timespec left{.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1'000'000L};
  while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

}  // namespace

int fault_of(const std::string& call, const std::string& path,
             const std::function<void()>& before_fault) {
  static std::atomic<int> calls = 0;
  if (!counts(path)) return 0;
  const int number = ++calls;
  const int at = std::atoi(variable("FAULTY_DISK_AT", "0").data());
  const int error = std::atoi(variable("FAULTY_DISK_ERRNO", "0").data());
  const bool stays_full = error != 0 && call == "write" && at != 0 && number > at;
  if (number != at && !stays_full) return 0;
  before_fault();
  if (error == 0) ::kill(::getpid(), SIGKILL);
  return error;
}

bool leaves_out_fsync(const std::string& path) {
  if (!counts(path)) return false;
  sleep_for(std::atoi(variable("FAULTY_DISK_SLEEP", "0").data()));
  return true;
}

}  // namespace ladder
