// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "ladder/comm/process_group.h"
#include "ladder/data/data_loader.h"
#include "ladder/nn/model.h"

namespace ladder {

// The loss of some samples, summed to a scalar. output, targets: one row per sample.
using LossSum =
    std::function<torch::Tensor(const torch::Tensor& output, const torch::Tensor& targets)>;

struct Misclassified {
  std::int64_t index = 0;       // of the sample, in the order of the evaluation
  std::int64_t prediction = 0;  // the class with the highest score
};

// The counts of an evaluation, as sums, so that those of several ranks can be added.
struct Evaluation {
  std::int64_t correct = 0;                  // samples whose highest score is that of their class
  std::int64_t seen = 0;                     // samples evaluated
  double loss_sum = 0.0;                     // sum of the loss over them
  std::vector<Misclassified> misclassified;  // of this rank; empty in a sum over several ranks

  // From 0 to 100; the metric of a Trainer (ladder::accuracy) is from 0 to 1.
  double accuracy() const {
    return 100.0 * static_cast<double>(correct) / static_cast<double>(seen);
  }
  double mean_loss() const { return loss_sum / static_cast<double>(seen); }
};

// Sums an evaluation batch by batch; waits for the device only in result().
class ClassificationMeter {
 public:
  ClassificationMeter(LossSum loss_sum, const torch::Device& device);

  // output: [N, classes] of the network; targets: int64 [N]. Both on the device.
  void add(const torch::Tensor& output, const torch::Tensor& targets);

  Evaluation result() const;

 private:
  LossSum loss_sum_of_;
  torch::Tensor correct_;             // int64 scalar
  torch::Tensor loss_sum_;            // float64 scalar
  std::vector<torch::Tensor> wrong_;  // per batch: int64 [N], the wrong class or -1
  std::int64_t seen_ = 0;
};

// Runs a classifier over all batches of `loader`, in evaluation mode and without gradients, then
// restores the modes of its layers. Counts this rank's samples alone; see sum_over_ranks. Waits for
// the device once, at the end.
Evaluation evaluate(Model& model, const DataLoader& loader, const LossSum& loss_sum,
                    const torch::Device& device);

// The sums over all ranks, on every rank. Collectives; counts are added as int64, exactly.
double sum_over_ranks(double value, const ProcessGroup& group);
Evaluation sum_over_ranks(const Evaluation& local, const ProcessGroup& group);

// Throws DistributedError unless `expected` samples were counted: repeated or missing samples give
// a wrong accuracy.
void require_each_sample_once(const Evaluation& total, std::int64_t expected);

}  // namespace ladder
