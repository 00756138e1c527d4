// SPDX-License-Identifier: Apache-2.0
#include "ladder/guest/torch_lr_scheduler.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "ladder/io/json.h"

namespace ladder {
namespace {

constexpr const char* kStepCount = "step_count";

// The protected members of LRScheduler, which has no public ones.
struct Access : torch::optim::LRScheduler {
  static unsigned& step_count(torch::optim::LRScheduler& scheduler) {
    return scheduler.*(&Access::step_count_);
  }
  static std::vector<double> rates(torch::optim::LRScheduler& scheduler) {
    return (scheduler.*(&Access::get_current_lrs))();
  }
};

}  // namespace

TorchLrScheduler::TorchLrScheduler(std::shared_ptr<torch::optim::LRScheduler> scheduler,
                                   torch::optim::Optimizer& optimizer)
    : LrScheduler(optimizer), scheduler_(std::move(scheduler)) {}

void TorchLrScheduler::step() {
  settle();
  scheduler_->step();
  LrScheduler::step();
}

double TorchLrScheduler::next_lr(double /*base_lr*/, double present_lr) const { return present_lr; }

nlohmann::json TorchLrScheduler::own_state() const {
  return {{kStepCount, Access::step_count(*scheduler_)}};
}

std::function<void()> TorchLrScheduler::plan_own(const JsonReader& saved) {
  const auto count =
      static_cast<unsigned>(saved.count(kStepCount, std::numeric_limits<unsigned>::max()));
  return [this, count] { Access::step_count(*scheduler_) = count; };
}

torch::optim::Optimizer* optimizer_of(torch::optim::LRScheduler& scheduler,
                                      std::span<torch::optim::Optimizer* const> optimizers) {
  for (auto* const optimizer : optimizers) {
    if (optimizer->param_groups().empty()) continue;
    auto& options = optimizer->param_groups().front().options();
    const double rate = options.get_lr();
    const auto before = Access::rates(scheduler);
    options.set_lr(rate + 1.0);
    const bool follows = Access::rates(scheduler) != before;
    options.set_lr(rate);
    if (follows) return optimizer;
  }
  return nullptr;
}

}  // namespace ladder
