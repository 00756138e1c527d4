// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mnist {

// Whole files, compressed by gzip or not, read with a bound on their size.
//
// A compressed file can inflate to a thousand times its size, by accident or by malice, so
// the caller sets a limit. Nothing partial is ever returned: a file is either read whole and
// found intact, or refused by a DataError (exit code 3) whose message begins with the path.

struct FileBytes {
  std::vector<std::uint8_t> bytes;  // the content, inflated if it was compressed
  std::string file_sha256;          // of the file on disk, compressed or not
};

// Reads `path`, and inflates it if it begins with gzip's magic number, whatever its name.
// Throws DataError if the file is missing, unreadable, damaged, or holds more than
// `size_limit` bytes (inflated, if it is compressed).
FileBytes read_gzip_or_plain(const std::string& path, std::size_t size_limit);

// Inflates one gzip stream; `name` begins the messages. Checks what gzip stores for that
// purpose, the length and the CRC-32 of the content. Throws DataError if
//   - the stream is damaged or ends early,
//   - bytes follow its end (gzip allows several streams in a file; data sets have one),
//   - it holds more than `size_limit` bytes: at no time is more than that held.
// Source: RFC 1952, by way of zlib.
std::vector<std::uint8_t> inflate_gzip(std::span<const std::uint8_t> bytes, std::size_t size_limit,
                                       const std::string& name);

}  // namespace mnist
