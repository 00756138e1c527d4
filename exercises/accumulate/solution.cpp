// SPDX-License-Identifier: Apache-2.0
// Exercise 8: gradient accumulation with a short last window, and a checkpoint in the middle.
#include "exercises/accumulate/accumulate.h"

#include <algorithm>

namespace {

using namespace ladder;
using namespace ladder::exercises;

// One epoch from batch `first_batch` on, with one step per window of plan.window batches.
void train_epoch(DistributedDataParallel& model, torch::optim::Optimizer& optimizer,
                 const std::vector<Batch>& batches, std::int64_t first_batch, const LossOf& loss_of,
                 const Accumulation& plan) {
  // solution
  const auto count = std::ssize(batches);
  auto saved = first_batch;
  for (auto begin = first_batch; begin < count; begin += plan.window) {
    const auto end = std::min(begin + plan.window, count);
    double samples = 0;
    for (auto i = begin; i < end; ++i) samples += static_cast<double>(batches[i].global_size);
    for (auto i = begin; i < end; ++i) {
      const auto backward = [&] {
        const auto weight = static_cast<double>(batches[i].global_size) / samples;
        (loss_of(batches[i]) * weight).backward();
      };
      if (i + 1 < end) {
        const auto pause = model.no_sync();
        backward();
      } else {
        backward();
      }
    }
    optimizer.step();
    optimizer.zero_grad();
    if (end - saved >= plan.save_every) {
      plan.save(end);
      saved = end;
    }
  }
  // end
}

const Submission submission(Accumulate{train_epoch});

}  // namespace
