// SPDX-License-Identifier: Apache-2.0
// Exercise 0: the training loop.
#include "exercises/loop/loop.h"

namespace {

using namespace ladder;
using namespace ladder::exercises;

// Trains for one epoch: a step per batch. Returns the mean loss over the samples of the epoch.
double train_epoch(Model& model, const DataLoader& loader, torch::optim::Optimizer& optimizer,
                   const Forward& forward, const LossSum& loss_sum) {
  // solution
  double total = 0;
  std::int64_t samples = 0;
  model.train();
  for (const Batch& batch : loader) {
    const auto sum = loss_sum(forward(batch), batch.targets);
    const auto loss = sum / static_cast<double>(batch.size());
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    total += sum.item<double>();
    samples += batch.size();
  }
  return total / static_cast<double>(samples);
  // end
}

const Submission submission(Loop{train_epoch});

}  // namespace
