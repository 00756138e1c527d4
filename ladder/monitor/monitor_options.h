// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "ladder/monitor/run_settings.h"

namespace ladder {

// Options of a TrainingMonitor and its usual observers.
struct MonitorOptions {
  std::int64_t fingerprint = 0;    // hash every N-th step (observe/fingerprint.h); 0 = never
  std::string fingerprint_beside;  // write the hashes to FILE.rankN.jsonl beside this file
  std::string trace;               // file for a Chrome trace of some steps; empty = none
  bool progress = true;            // show a progress bar, unless quiet
  bool quiet = false;              // no progress bar, no epoch line, no testing line
  std::string epoch_line;          // printed when an epoch begins, with {epoch} and {epochs}
                                   // replaced by the numbers; empty = none
  std::string testing_line;        // printed when training ends; empty = none
  RunSettings settings;            // of the run: those that define it are saved with the progress
                                   // and compared by a run that resumes; the monitor adds the
                                   // precision
};

}  // namespace ladder
