// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace ladder::bench {

// What the parts of a training step take on rank 0, in milliseconds: the mean of the steps that a
// Chrome trace holds, but for the first.
struct Phases {
  double data = 0.0;           // from the optimizer's end to the first convolution
  double forward = 0.0;        // from there to the first box of autograd: layers and loss
  double backward = 0.0;       // to the last box of autograd; communication may run beside it
  double communication = 0.0;  // from there to the optimizer, and collectives that held up forward
                               // or backward: the wait that was not hidden. Over Gloo a collective
                               // that forward waits for counts as forward: its wait has no box
  double optimizer = 0.0;
};

// Throws DataError for a file that is no trace or holds fewer than two steps.
Phases read_phases(const std::filesystem::path& trace);

}  // namespace ladder::bench
