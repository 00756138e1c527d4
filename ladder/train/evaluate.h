// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "ladder/comm/process_group.h"
#include "ladder/data/data_loader.h"
#include "ladder/nn/model.h"
#include "ladder/train/recipe.h"

namespace ladder {

// Counts of an evaluation: plain sums, so that those of several ranks can be added.
struct Evaluation {
  std::int64_t correct = 0;  // images whose highest score is that of their label
  std::int64_t seen = 0;     // images looked at
  double loss_sum = 0.0;     // sum of the loss over the images seen

  double accuracy() const {
    return 100.0 * static_cast<double>(correct) / static_cast<double>(seen);
  }
  double mean_loss() const { return loss_sum / static_cast<double>(seen); }
};

// Counts batch after batch; waits for the device only when asked for the result.
class EvaluationCounter {
 public:
  // `recipe` must outlive it.
  EvaluationCounter(const Recipe& recipe, const torch::Device& device);

  // output: [N, 10], of the network; labels: int64 [N]. Both on the device.
  void add(const torch::Tensor& output, const torch::Tensor& labels);

  Evaluation result() const;

 private:
  const Recipe& recipe_;
  torch::Tensor correct_;   // int64 scalar
  torch::Tensor loss_sum_;  // float64 scalar
  std::int64_t seen_ = 0;
};

// Runs the model over all batches of `loader`, in evaluation mode and without gradients, and
// counts. The counts are of this rank alone; with several ranks the caller adds them up.
// Puts the model back into the mode it was in. Waits for the device once, at the end.
Evaluation evaluate(Model& model, const DataLoader& loader, const Recipe& recipe,
                    const torch::Device& device);

// The sums over all ranks, on every rank. Collectives; counts are added as int64, exactly.
double sum_over_ranks(double value, const ProcessGroup& group);
Evaluation sum_over_ranks(const Evaluation& local, const ProcessGroup& group);

// Throws DistributedError unless each of `expected` images was counted exactly once: what ranks
// that repeat samples, or miss some, get wrong without anybody noticing.
void require_all_seen(const Evaluation& total, std::int64_t expected);

}  // namespace ladder
