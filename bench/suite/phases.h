// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace ladder::bench {

// Times of the parts of a training step on rank 0, in milliseconds: the mean over the steps of a
// Chrome trace except the first.
struct Phases {
  double data = 0.0;           // from the optimizer's end to the first convolution
  double forward = 0.0;        // from there to the first event of autograd: layers and loss
  double backward = 0.0;       // to the last event of autograd; communication may overlap
  double communication = 0.0;  // from there to the optimizer, and collectives that delay forward or
                               // backward: the wait that is not hidden. Over Gloo a collective
                               // that forward waits for counts as forward: it has no event
  double optimizer = 0.0;
};

// Throws DataError for a file that is not a trace or has fewer than two steps.
Phases read_phases(const std::filesystem::path& trace);

}  // namespace ladder::bench
