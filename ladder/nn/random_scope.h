// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace ladder {

// What the random numbers of one training step depend on, and nothing else.
struct RandomKey {
  std::uint64_t seed = 0;   // of the run
  std::int64_t epoch = 0;   // counts from 0
  torch::Tensor positions;  // int64 [N] on the CPU: the place of each sample in the epoch's order
};

// Gives the layers of one training step their random key, for as long as it lives.
//
// In fast math a dropout layer draws the mask of a sample from (seed, epoch, position
// of the sample, layer, element): no generator, no state. The mask is therefore the
// same on any rank, for any number of ranks, under gradient accumulation and after a
// resume. The key reaches the layers through this scope, one a step:
//
//     const RandomScope random({seed, epoch, batch.positions});
//     auto loss = recipe.loss(model.forward(batch.images), batch);
//
// A training forward without a scope throws: a forgotten scope would repeat masks. Scopes
// belong to their thread and nest; the innermost counts. A thread that runs a part of the
// batch opens its own scope with its part of the positions. Reference math ignores it.
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
