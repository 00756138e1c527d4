// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
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

// A file of records, one JSON object per line: it grows by appending, and `jq` and
// pandas.read_json(lines=True) read it.
//
// It is an AppendedFile. JSON has no NaN and no infinity: such numbers become null. Bytes that are
// not UTF-8 become U+FFFD.
//
// A default-constructed object writes nothing, so callers need no check for a file. Movable; one
// owner of the file; not for use by several threads.
class JsonLines {
 public:
  JsonLines() = default;
  // Throws UsageError naming `field` if the file cannot be written, so a mistyped path costs a
  // second and not an epoch. Changes nothing yet: a run that fails before its first record leaves
  // the file of the last one. (A pipe is opened at once, because its reader waits for that.)
  explicit JsonLines(const std::string& path, std::string_view field = "path",
                     OldRecords old_records = OldRecords::kReplace);

  // Appends one line; the first one empties the file, unless old records are kept. Throws
  // SystemError on failure, such as a full disk.
  void write(const nlohmann::ordered_json& record);

 private:
  std::string path_;
  OldRecords old_records_ = OldRecords::kReplace;
  AppendedFile file_;
};

}  // namespace ladder
