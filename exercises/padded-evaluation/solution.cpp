// SPDX-License-Identifier: Apache-2.0
// Exercise 13: a repair of the trap padded-evaluation.
#include "exercises/padded-evaluation/padded-evaluation.h"

#include "ladder/data/distributed_sampler.h"

namespace {

using namespace ladder;
using namespace ladder::exercises;

// The counts over all samples of `test`, the same on every rank.
Evaluation evaluate_on_all(Model& model, const std::shared_ptr<const Dataset>& test,
                           const LossSum& loss_sum, const ProcessGroup& group) {
  // solution
  // stub: const auto part = std::make_shared<DistributedSampler>(
  // stub:     test->size(), DistributedSamplerOptions{.world_size = group.world_size(),
  // stub:                                             .rank = group.rank(),
  // stub:                                             .shuffle = false});
  // stub: const DataLoader loader(test, {.batch_size = 16, .sampler = part});
  // stub: return sum_over_ranks(evaluate(model, loader, loss_sum, torch::kCPU), group);
  const auto part = std::make_shared<ExactEvalSampler>(
      test->size(),
      ExactEvalSamplerOptions{.world_size = group.world_size(), .rank = group.rank()});
  const DataLoader loader(test, {.batch_size = 16, .sampler = part});
  return sum_over_ranks(evaluate(model, loader, loss_sum, torch::kCPU), group);
  // end
}

const Submission submission(PaddedEvaluation{evaluate_on_all});

}  // namespace
