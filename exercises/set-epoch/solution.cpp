// SPDX-License-Identifier: Apache-2.0
// Exercise 12: a repair of the trap no-set-epoch.
#include "exercises/set-epoch/set-epoch.h"

namespace {

using namespace ladder;
using namespace ladder::exercises;

// Reads the epochs from `first_epoch`, which is not 0 in a resumed run, to `epochs - 1`.
void train(DataLoader& loader, std::int64_t first_epoch, std::int64_t epochs,
           const std::function<void(const Batch& batch)>& step) {
  // solution
  // stub: for (std::int64_t epoch = first_epoch; epoch < epochs; ++epoch) {
  // stub:   for (const Batch& batch : loader) step(batch);
  // stub: }
  for (std::int64_t epoch = first_epoch; epoch < epochs; ++epoch) {
    loader.set_epoch(epoch);
    for (const Batch& batch : loader) step(batch);
  }
  // end
}

const Submission submission(SetEpoch{train});

}  // namespace
