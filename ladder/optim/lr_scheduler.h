// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

namespace ladder {

class JsonReader;

// Changes an optimizer's learning rate over the course of training.
//
// A scheduler holds a reference to the optimizer, which must outlive it. It sets the rate of every
// parameter group: at construction for the first step, and at each `step()` for the next one. A
// step is an epoch or an optimizer step: the caller decides. All values equal Python's to the last
// bit, because the same operations on doubles run in the same order.
//
// schedules.h has the schedules of transformers, reduce_lr_on_plateau.h the one that follows a
// metric. Python's counterpart: torch.optim.lr_scheduler.LRScheduler.
class LrScheduler {
 public:
  explicit LrScheduler(torch::optim::Optimizer& optimizer);
  virtual ~LrScheduler() = default;
  LrScheduler(const LrScheduler&) = delete;
  LrScheduler& operator=(const LrScheduler&) = delete;

  // Sets the learning rates of the next step or epoch. Throws UsageError if the optimizer got
  // another parameter group since the construction.
  virtual void step();

  // step(), if `condition` returns true. It is called late, by settle(), because its answer may
  // have to wait for a GPU.
  void step_if(std::function<bool()> condition);

  // Completes the calls of step_if: the optimizer then has its next rates. The functions of this
  // class that read or change anything call it first.
  void settle() const;

  const torch::optim::Optimizer& optimizer() const { return optimizer_; }

  // The number of steps so far.
  std::int64_t last_epoch() const;

  // The initial and the present rate of each parameter group.
  const std::vector<double>& base_lrs() const { return base_lrs_; }
  std::vector<double> last_lr() const;

  // The position of the schedule: last_epoch, base_lrs and last_lr, and more in some classes. As
  // JSON text all numbers come back to the last bit. Python calls last_lr _last_lr. Options such
  // as StepLR's gamma are not part of it.
  static constexpr bool kSavedByRank0 = true;  // of all ranks; see json_part
  nlohmann::json state_dict() const;

  // Loads a state in two steps, like FusedOptimizer::plan_load: this one checks, and the function
  // it returns applies and cannot fail. Call that while the scheduler lives. The present rates
  // belong to the optimizer's state: load that too. last_lr is only checked.
  //
  // Throws DataError, naming `origin`, for a value that is missing, unknown or not a number, a
  // negative count, or another number of rates than the optimizer has parameter groups.
  [[nodiscard]] std::function<void()> plan_load(const nlohmann::json& state,
                                                std::string_view origin);

  // Both steps.
  void load_state_dict(const nlohmann::json& state, std::string_view origin);

 protected:
  // The rate of one group at `last_epoch()`, from its initial and its present rate.
  virtual double next_lr(double base_lr, double present_lr) const = 0;

  void apply();

  // The further state of a class, an object, and the two steps of loading it. plan_own reads the
  // names of own_state and throws DataError.
  virtual nlohmann::json own_state() const;
  virtual std::function<void()> plan_own(const JsonReader& saved);

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<double> base_lrs_;
  std::int64_t last_epoch_ = 0;
  mutable std::function<void()> pending_;  // the calls of step_if that are not completed
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

// The initial rate times a function of the step. Python: LambdaLR.
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
