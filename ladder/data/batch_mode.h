// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ladder {

// What the batch size of a run with several ranks means.
enum class BatchMode {
  kGlobal,     // of all ranks together: they divide each batch, and any number of ranks does the
               // same steps
  kPerDevice,  // of each rank, as in the tutorials: the batch grows with the ranks, an epoch has
               // fewer steps, and the learning rate may have to grow as well
};

}  // namespace ladder
