// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include <memory>
#include <span>

#include "ladder/optim/lr_scheduler.h"

namespace ladder {

// A schedule of LibTorch, such as torch::optim::StepLR, as an LrScheduler: its position can be
// saved. `optimizer` is the one that it was made for.
class TorchLrScheduler : public LrScheduler {
 public:
  TorchLrScheduler(std::shared_ptr<torch::optim::LRScheduler> scheduler,
                   torch::optim::Optimizer& optimizer);

  void step() override;

  const std::shared_ptr<torch::optim::LRScheduler>& scheduler() const { return scheduler_; }

 protected:
  double next_lr(double base_lr, double present_lr) const override;
  nlohmann::json own_state() const override;
  std::function<void()> plan_own(const JsonReader& saved) override;

 private:
  std::shared_ptr<torch::optim::LRScheduler> scheduler_;
};

// The one of `optimizers` whose learning rates `scheduler` changes; nullptr if none.
torch::optim::Optimizer* optimizer_of(torch::optim::LRScheduler& scheduler,
                                      std::span<torch::optim::Optimizer* const> optimizers);

}  // namespace ladder
