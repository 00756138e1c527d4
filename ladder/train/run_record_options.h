// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ladder {

struct RunRecordOptions {
  std::string stage;              // name of the program
  std::string metrics;            // --metrics: file of JSON lines; empty = none
  std::int64_t fingerprint = 0;   // --fingerprint: every how many steps; 0 = never
  std::string trace;              // --trace: file for a Chrome trace of some steps; empty = none
  bool quiet = false;             // --quiet: no log, no progress; results are still printed
  bool progress = true;           // false: somebody else shows how far the training has come
  bool stops = true;              // false: somebody else listens to SIGINT and SIGTERM
  std::optional<double> started;  // steady_seconds() at the start; unset = when the record is made
  std::vector<std::pair<std::string, std::string>>
      flags;  // all options as resolved, for the record
};

}  // namespace ladder
