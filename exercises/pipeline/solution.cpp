// SPDX-License-Identifier: Apache-2.0
// Exercise 11: a network that is cut over the ranks, which pass micro-batches on.
#include "exercises/pipeline/pipeline.h"

#include <deque>

namespace {

using namespace ladder;
using namespace ladder::exercises;

// solution
// stub:
// What both schedules of a step do with one micro-batch.
class StageStep {
 public:
  StageStep(const Stage& stage, const std::vector<MicroBatch>& all, const ProcessGroup& group)
      : stage_(stage), group_(group) {
    for (const auto& micro_batch : all) all_rows_ += static_cast<double>(micro_batch.rows);
  }

  void forward(const MicroBatch& micro_batch) {
    auto input = micro_batch.inputs;
    if (!is_first()) {
      input = torch::empty({micro_batch.rows, stage_.input_width});
      group_.recv(input, group_.rank() - 1);
      input.requires_grad_();
    }
    auto output = stage_.forward(input);
    if (is_last()) {
      const double share = static_cast<double>(micro_batch.rows) / all_rows_;
      output = stage_.mean_loss(output, micro_batch.targets) * share;
    } else {
      sends_.push_back(group_.isend(output.detach(), group_.rank() + 1));
    }
    in_flight_.emplace_back(input, output);
  }

  void backward() {
    const auto [input, output] = in_flight_.front();
    in_flight_.pop_front();
    torch::Tensor gradient;  // of the loss: 1
    if (!is_last()) {
      gradient = torch::empty_like(output);
      group_.recv(gradient, group_.rank() + 1);
    }
    output.backward(gradient);
    if (!is_first()) sends_.push_back(group_.isend(input.grad(), group_.rank() - 1));
  }

  // The backwards that remain.
  void finish() {
    while (!in_flight_.empty()) backward();
    for (auto& sending : sends_) sending.wait();
  }

 private:
  bool is_first() const { return group_.rank() == 0; }
  bool is_last() const { return group_.rank() == group_.world_size() - 1; }

  const Stage& stage_;
  const ProcessGroup& group_;
  double all_rows_ = 0;
  std::deque<std::pair<torch::Tensor, torch::Tensor>> in_flight_;  // input and output
  std::vector<Work> sends_;
};
// end

// Part 1. All forwards, then all backwards.
void all_forwards_first(const Stage& stage, const std::vector<MicroBatch>& micro_batches,
                        const ProcessGroup& group) {
  // solution
  StageStep step(stage, micro_batches, group);
  for (const auto& micro_batch : micro_batches) step.forward(micro_batch);
  step.finish();
  // end
}

// Part 2. As soon as a rank has enough forwards ahead, one backward follows each forward.
void one_forward_one_backward(const Stage& stage, const std::vector<MicroBatch>& micro_batches,
                              const ProcessGroup& group) {
  // solution
  StageStep step(stage, micro_batches, group);
  int ahead = group.world_size() - 1 - group.rank();
  for (const auto& micro_batch : micro_batches) {
    step.forward(micro_batch);
    if (--ahead < 0) step.backward();
  }
  step.finish();
  // end
}

const Submission submission(Pipeline{all_forwards_first, one_forward_one_backward});

}  // namespace
