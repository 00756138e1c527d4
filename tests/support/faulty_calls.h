// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ladder {

// Calls of the operating system that kill or fail on demand, for tests of what a crash leaves.
//
// A test that links faulty_calls.cpp has these functions of its own in place of the C library's:
// open (when it may create), write, fsync, mkdir, rename, renameat2, symlink, unlink, unlinkat.
// Library code and the C++ standard library call them without knowing. They do what the real ones
// do, until a fault is armed; only fsync does nothing, for without a power cut nobody could tell,
// and with it these tests would take minutes.
struct Fault {
  int at = 0;                     // the call that fails, counted from 1; 0 = none
  int error = 0;                  // the errno it returns; 0 = SIGKILL instead of the call
  bool without_exchange = false;  // renameat2 is refused, as many network file systems do
};

// From now on, in this process and its children.
void arm(const Fault& fault);
void disarm();

// Runs `fn` once, in the middle of whatever calls openat next: for a change at the worst moment.
void before_next_openat(std::function<void()> fn);

// The calls since arm(), each as "rename a b", with the last part of each path.
std::vector<std::string> calls_seen();

}  // namespace ladder
