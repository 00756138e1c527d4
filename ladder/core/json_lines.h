// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace ladder {

// What becomes of the records that a file holds already.
enum class OldRecords { kReplace, kKeep };

// A file of records: one JSON object a line, the form that grows by appending and that
// every tool reads (`jq`, pandas.read_json(lines=True)).
//
// Each record is with the operating system before write() returns, so a run that dies
// leaves all records up to then, readable.
//
// A default-constructed object writes nothing: code that records need not ask whether
// a file was named. Movable; one owner of the file; not for use by several threads.
//
// JSON has no NaN and no infinity: such numbers are written as null. Text that is not
// UTF-8 has its bad bytes replaced by U+FFFD.
class JsonLines {
 public:
  JsonLines() = default;
  // Checks that the file can be written and throws UsageError (exit code 2) naming `field` if
  // not: a mistyped path then costs a second, not an epoch. Touches nothing yet, so that a
  // run that fails before its first record leaves the file of the last one alone.
  explicit JsonLines(const std::string& path, std::string_view field = "path",
                     OldRecords old_records = OldRecords::kReplace);

  // Appends one line; the first one empties the file, unless old records are kept. Throws
  // SystemError if that fails, as on a full disk.
  void write(const nlohmann::ordered_json& record);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string path_;
  OldRecords old_records_ = OldRecords::kReplace;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace ladder
