// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace ladder {

// Limits of the operating system, as `ulimit` and quotas set them. Each message names the limit and
// a command to type.

// Whether a call failed because of a limit: of open files, memory, the size of a file or the space
// on a disk. fork and pthread_create report theirs as EAGAIN, which other calls use as well.
bool is_limit_of_system(int errno_value);

// "this process may open 20 files: ulimit -n 1024"; "" for an errno that is no limit.
std::string hint_for_limit(int errno_value);

// The same for any errno of a call on the file `path`: a limit, a missing permission, a wrong path,
// something in its place; "" for others.
std::string hint_for_errno(int errno_value, std::string_view path);

// For EAGAIN of fork or of a new thread: "this user may have 100 processes and threads: ...".
std::string hint_for_processes();

// Whether `ulimit -v` limits the memory of this process.
bool is_memory_limited();

// The next four check before the work begins, because libraries that reach a limit wait for each
// other, or end the process. They throw SystemError (exit code 1) that names `where`.

// Raises the limit of open files, up to the hard one, so that this process can open `count` more.
void require_open_files(std::string_view where, int count);

// Checks that the stack of a thread is large enough for LibTorch: 256 KiB.
void require_stack(std::string_view where);

// Checks that this process can start `count` threads: starts and ends them, 0.05 ms each.
void require_threads(std::string_view where, int count);

// Checks that `ranks` processes with `threads` threads each, besides their first, can run on this
// machine at once: starts and ends as many in a process of its own, so this one may still fork. A
// check by each rank would find the threads free that another one needs next.
void require_ranks(std::string_view where, int ranks, int threads);

}  // namespace ladder
