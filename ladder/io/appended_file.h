// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "ladder/core/unique_fd.h"

namespace ladder {

// The treatment of the content that a file already has.
enum class OldRecords { kReplace, kKeep, kRefuse };

// A file that grows while a program runs. write() passes the bytes to the operating system before
// it returns, so a run that dies leaves all of them.
//
// It may also be a pipe that has a reader, or a character device such as /dev/null. Opening never
// waits. A write waits for a reader that is slow, at most `patience`.
//
// Throws SystemError if a call fails, as on a full disk, for anything else that is not a file, for
// a file that another AppendedFile has open, and for a reader that does not read.
class AppendedFile {
 public:
  AppendedFile() = default;  // no file
  explicit AppendedFile(std::string path, OldRecords old_records = OldRecords::kReplace,
                        std::chrono::milliseconds patience = std::chrono::seconds(20));

  explicit operator bool() const { return static_cast<bool>(descriptor_); }
  const std::string& path() const { return path_; }
  std::uint64_t size() const;  // in bytes; 0 for a pipe or a device
  void write(std::string_view bytes);

 private:
  void wait_for_reader() const;

  std::string path_;
  UniqueFd descriptor_;
  std::chrono::milliseconds patience_{};
};

// The hint for a pipe that nobody reads.
std::string reader_of_pipe(const std::string& path);

}  // namespace ladder
