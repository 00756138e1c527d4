// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "ladder/kernels/dropout_mask.h"

namespace ladder {

// Gives the layers of one training step their random key, for as long as it lives.
//
// A dropout layer whose masks are by position draws the mask of a sample from (seed,
// epoch, position of the sample, layer, element): no generator, no state. The mask is
// therefore the same on any rank, for any number of ranks, under gradient accumulation
// and after a resume. The key reaches the layers through this scope, one per step:
//
//     const RandomScope random({seed, epoch, batch.positions});
//     auto loss = criterion(model.forward(batch.inputs), batch);
//
// A training forward without a scope throws: a forgotten scope would repeat masks. Scopes
// belong to their thread and nest; the innermost is used. A thread that runs a part of the
// batch opens its own scope with its part of the positions.
class RandomScope {
 public:
  explicit RandomScope(RandomKey key);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  // The key of this thread's innermost scope. Throws UsageError when there is none.
  static const RandomKey& current();

  // The same, or nullptr when there is none.
  static const RandomKey* find();

 private:
  RandomKey key_;
  const RandomScope* outer_;
};

}  // namespace ladder
