// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

namespace ladder {

class SavedSchedule;

// Changes an optimizer's learning rate over the course of training.
//
// A scheduler holds a reference to the optimizer, which must outlive it, and sets the
// rate of every parameter group: at construction for the first step, and at each
// `step()` for the next one. What a step is, an epoch or an optimizer step, is up to who
// calls it. All values are equal to Python's to the last bit, because the same operations
// on doubles are done in the same order.
//
// Those of transformers are in schedules.h; the one that looks at a metric, in
// reduce_lr_on_plateau.h.
//
// Python's counterpart: torch.optim.lr_scheduler.LRScheduler.
class LrScheduler {
 public:
  explicit LrScheduler(torch::optim::Optimizer& optimizer);
  virtual ~LrScheduler() = default;
  LrScheduler(const LrScheduler&) = delete;
  LrScheduler& operator=(const LrScheduler&) = delete;

  // Sets the learning rates of the next step or epoch.
  virtual void step();

  // The optimizer that it was made for.
  const torch::optim::Optimizer& optimizer() const { return optimizer_; }

  // How often `step` was called.
  std::int64_t last_epoch() const { return last_epoch_; }

  // The rates it was made with and the rates in force, one a parameter group each.
  const std::vector<double>& base_lrs() const { return base_lrs_; }
  std::vector<double> last_lr() const;

  // Where the schedule stands: last_epoch, base_lrs (the rates it was made with) and last_lr. As
  // JSON text all numbers come back to the last bit. Python's LRScheduler has the same, the last
  // as _last_lr. A class that remembers more adds it. Options such as StepLR's gamma are no part of
  // it: they come from the program.
  nlohmann::json state_dict() const;

  // Takes a state back, in two halves as FusedOptimizer::plan_load: this one checks, and what it
  // returns applies and cannot fail; call that while the scheduler lives. The rates in force
  // belong to the optimizer's own state: load that too. last_lr is only checked.
  //
  // Throws DataError, naming `origin`: a value that is missing, unknown, no number, below 0 where
  // it counts steps, or another number of rates than the optimizer has parameter groups.
  [[nodiscard]] std::function<void()> plan_load(const nlohmann::json& state,
                                                std::string_view origin);

  // Both halves.
  void load_state_dict(const nlohmann::json& state, std::string_view origin);

 protected:
  // The rate of one group at `last_epoch()`, from the one it was made with and the present one.
  virtual double next_lr(double base_lr, double present_lr) const = 0;

  void apply();

  // What a class remembers besides, an object, and the two halves of taking it back; plan_own looks
  // at the names of own_state and throws DataError.
  virtual nlohmann::json own_state() const;
  virtual std::function<void()> plan_own(const SavedSchedule& saved);

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<double> base_lrs_;
  std::int64_t last_epoch_ = 0;
};

struct StepLrOptions {
  std::int64_t step_size = 30;  // epochs between two drops; > 0
  double gamma = 0.1;           // factor of each drop
};

// Multiplies the rate by `gamma` every `step_size` epochs. Python: StepLR.
class StepLR : public LrScheduler {
 public:
  explicit StepLR(torch::optim::Optimizer& optimizer, StepLrOptions options = {});

 protected:
  double next_lr(double base_lr, double present_lr) const override;

 private:
  StepLrOptions options_;
};

// The rate it was made with times a function of the step. Python: LambdaLR.
class LambdaLR : public LrScheduler {
 public:
  using Factor = std::function<double(std::int64_t step)>;
  LambdaLR(torch::optim::Optimizer& optimizer, Factor factor);

 protected:
  double next_lr(double base_lr, double present_lr) const override;

 private:
  Factor factor_;
};

}  // namespace ladder
