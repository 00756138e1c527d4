// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ladder {

// Makes malloc keep the memory that a training step frees.
//
// Otherwise large blocks return to the kernel at once, and the next step pays for fresh pages. The
// price: the process never shrinks. Call it once, before the first tensor. Effective with glibc.
void tune_allocator();

// The peak of this program's resident memory in bytes. From VmHWM: getrusage's ru_maxrss survives
// exec, so a program that a larger one started would report the peak of that one.
std::int64_t peak_rss_bytes();

// The bytes that this process has read since its start: from files, also cached ones, and through
// read() from pipes and sockets. 0 if the kernel does not count them.
std::int64_t read_bytes();

}  // namespace ladder
