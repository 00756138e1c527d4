// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace ladder {

// What a user can do after a failed call of the operating system: a command to type, by its errno.

// Whether a call failed because of a limit: of open files, memory, the size of a file or the space
// on a disk. fork and pthread_create report theirs as EAGAIN, which other calls use as well.
bool is_limit_of_system(int errno_value);

// "this process may open 20 files: ulimit -n 1024"; "" for an errno that is no limit.
std::string hint_for_limit(int errno_value);

// The same for any errno of a call on the file `path`: a limit, a missing permission, a wrong path,
// something in its place; "" for others.
std::string hint_for_errno(int errno_value, std::string_view path);

}  // namespace ladder
