// SPDX-License-Identifier: Apache-2.0
// Exercise 10: the state of an optimizer, divided among the ranks.
#include "exercises/zero/zero.h"

namespace {

using namespace ladder;
using namespace ladder::exercises;

// Each rank steps an equal range of all weights and gets the other ranges from their ranks.
class DividedAdam : public DividedOptimizer {
 public:
  DividedAdam(const std::vector<torch::Tensor>& parameters, const ProcessGroup& group)
      : parameters_(parameters), group_(group) {
    // solution
    std::int64_t count = 0;
    for (const auto& parameter : parameters_) count += parameter.numel();
    const auto parts = torch::tensor_split(torch::empty({count}), group_.world_size());
    own_ = std::make_unique<AdamPart>(parts[group_.rank()].numel());
    // end
  }

  // Steps all weights by their gradients, which are equal on all ranks.
  void step() override {
    // solution
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> weights;
    std::vector<torch::Tensor> gradients;
    for (const auto& parameter : parameters_) {
      weights.push_back(parameter.flatten());
      gradients.push_back(parameter.grad().flatten());
    }
    const auto all = torch::cat(weights);
    auto parts = torch::tensor_split(all, group_.world_size());  // views
    const auto gradient_parts = torch::tensor_split(torch::cat(gradients), group_.world_size());
    own_->step(parts[group_.rank()], gradient_parts[group_.rank()]);
    for (int owner = 0; owner < group_.world_size(); ++owner) {
      group_.broadcast(parts[owner], owner);
    }
    std::int64_t begin = 0;
    for (auto& parameter : parameters_) {
      parameter.copy_(all.narrow(0, begin, parameter.numel()).view_as(parameter));
      begin += parameter.numel();
    }
    // end
  }

 private:
  std::vector<torch::Tensor> parameters_;
  ProcessGroup group_;
  std::unique_ptr<AdamPart> own_;  // the part of this rank
};

std::unique_ptr<DividedOptimizer> make_optimizer(const std::vector<torch::Tensor>& parameters,
                                                 const ProcessGroup& group) {
  return std::make_unique<DividedAdam>(parameters, group);
}

const Submission submission(Zero{make_optimizer});

}  // namespace
