// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "ladder/io/appended_file.h"

namespace ladder {

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
