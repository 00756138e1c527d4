// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ladder {

// Tells malloc to keep the memory that a training step frees.
//
// Large blocks otherwise go back to the kernel at once, and the next step pays for fresh
// pages: an epoch of a small CNN on two cores took 50 s instead of 39. The price is that the
// process never shrinks. Call it once, before the first tensor; only glibc's malloc listens.
void tune_allocator();

// The most memory this program has had resident at any time, in bytes. From VmHWM, because
// getrusage's ru_maxrss survives exec: a program started by a larger one reports the other's.
std::int64_t peak_rss_bytes();

}  // namespace ladder
