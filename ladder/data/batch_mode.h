// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ladder {

// What the batch size of a run with several ranks counts.
enum class BatchMode {
  kGlobal,     // samples of all ranks: they divide each batch; equal steps for any number of ranks
  kPerDevice,  // samples of each rank, as in the tutorials: the global batch grows with the ranks,
               // an epoch has fewer steps, and the learning rate may have to grow as well
};

}  // namespace ladder
