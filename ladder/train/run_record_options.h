// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ladder {

struct RunRecordOptions {
  std::string stage;             // name of the program
  std::string metrics;           // --metrics: file of JSON lines; empty = none
  std::int64_t fingerprint = 0;  // --fingerprint: every how many steps; 0 = never
  std::string trace;             // --trace: file for a Chrome trace of some steps; empty = none
  bool quiet = false;            // --quiet: no log, no progress; results are still printed
  std::vector<std::pair<std::string, std::string>>
      flags;  // all options as resolved, for the record
};

}  // namespace ladder
