// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "ladder/core/unique_fd.h"

namespace ladder {

// A file to read whose path a user, a configuration or a checkpoint names.
//
// A path is not always a file: to open a pipe waits for its other end, and a device may never end.
// These functions never wait, and accept regular files alone.
struct RegularFile {
  UniqueFd descriptor;
  std::uint64_t bytes = 0;  // its length when it was opened
  int error = 0;            // errno; EISDIR for anything that is no file
  std::string problem;      // empty = it can be read; else "none", "a folder", "a link", "a pipe",
                            // "a device", "a socket", or the text of errno in quotes
  std::string hint;         // for the problem
};

// Follows links. Throws SystemError (exit code 1) if this process reached a limit of the system,
// such as the number of open files.
RegularFile open_regular_file(const std::string& path);

// The file `name` of an open folder. Follows no link.
RegularFile open_regular_file_in(int folder, const std::string& name);

// The same as open_regular_file, but a DataError (exit code 3) for a path that cannot be read.
RegularFile open_data_file(const std::string& path);

// Passes the bytes to `take` in pieces until it returns false or the file ends. Returns 0 or errno.
int read_pieces(const RegularFile& file,
                const std::function<bool(std::span<const std::byte>)>& take);

// Fills `bytes` from `offset` on. Returns 0 or errno; EIO for a file that ends before.
int read_at(const RegularFile& file, std::uint64_t offset, std::span<std::byte> bytes);

}  // namespace ladder
