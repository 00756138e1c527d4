// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace ladder {

// The parts of a TrainingMonitor that are on.
struct MonitorOptions {
  std::int64_t fingerprint = 0;    // hash every N-th step (train/fingerprint.h); 0 = never
  std::string fingerprint_beside;  // the hashes go to FILE.rankN.jsonl beside this file
  std::string trace;               // file for a Chrome trace of some steps; empty = none
  bool progress = true;            // show a progress bar, unless quiet
  bool stop_on_signals = true;     // SIGINT and SIGTERM end the run after a step (StopSignal)
  bool quiet = false;              // no progress bar, no epoch line, no testing line
  std::string epoch_line;          // on the standard output as an epoch begins; empty = none.
                                   // {epoch} and {epochs} stand for the numbers
  std::string testing_line;        // the same as training ends
};

}  // namespace ladder
