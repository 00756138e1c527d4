// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ladder {

// Whether this process may fork children that go on to work.
//
// A forked child has one thread: the copy of the one that called fork. Locks that other threads
// held stay locked in it for ever, thread pools believe in threads that are not there, and CUDA
// refuses every call. All of that shows as a hang, much later; so it is refused before.
//
// Throws UsageError unless this process has exactly one thread and no GPU open. A thread that has
// just been joined is given a moment to leave the kernel's list.
// `process` is the folder that stands for "/proc/self": tests use one of their own.
void require_forkable(const std::string& process = "/proc/self");

// Throws UsageError if a launcher (torchrun, mpirun) started this process as one of its ranks.
void require_not_launched();

}  // namespace ladder
