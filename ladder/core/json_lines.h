// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace ladder {

// A file that grows while a program runs. write() passes the bytes to the operating system before
// it returns, so a run that dies leaves all of them. SystemError if that fails, as on a full disk.
class AppendedFile {
 public:
  AppendedFile() = default;                          // no file
  AppendedFile(std::string path, const char* mode);  // a mode of fopen, such as "ae"

  explicit operator bool() const { return file_ != nullptr; }
  const std::string& path() const { return path_; }
  void write(std::string_view bytes);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

// The treatment of records that a file already has.
enum class OldRecords { kReplace, kKeep };

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
  // the file of the last one.
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
