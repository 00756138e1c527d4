// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace c10 {
struct Event;
}

namespace ladder {

struct GradScalerOptions {
  double init_scale = 65536.0;          // the first scale; > 0
  double growth_factor = 2.0;           // multiplier after growth_interval good steps; > 1
  double backoff_factor = 0.5;          // multiplier after an overflow; in (0, 1)
  std::int64_t growth_interval = 2000;  // steps in a row without overflow; > 0
  bool enabled = true;                  // false: step() only steps, the rest does nothing
};

// Whether a step changed the weights.
class StepResult {
 public:
  explicit StepResult(torch::Tensor found_inf) : found_inf_(std::move(found_inf)) {}

  // Starts to copy the answer to the host, without a wait. A later taken() then waits for the GPU
  // to reach this point, and not for what it is given afterwards.
  void prefetch();

  // false if the step was skipped because a gradient was inf or NaN. Waits for the GPU: the only
  // synchronisation of a scaled step, and optional.
  bool taken() const;

 private:
  torch::Tensor found_inf_;  // on the device, or on its way to the host; undefined = taken
  std::shared_ptr<c10::Event> copied_;  // the end of the copy, once it was started
};

// Loss scaling, for gradients in float16.
//
// float16 rounds values below 6e-8 to 0, and many gradients are smaller. So the loss is multiplied
// by a large scale before backward, and the gradients are divided by it before the optimizer's
// step. An overflow skips the step and halves the scale; 2000 steps without one double it.
// docs/reference/4-ddp-amp.md, "The gradient scaler", has an example.
//
//     GradScaler scaler;
//     scaler.scale(loss).backward();       // gradients × scale
//     scaler.unscale_(optimizer);          // optional, to read or clip them: gradients ÷ scale
//     scaler.step(optimizer);              // divides them, if not done; skips if one is not finite
//     scaler.update();                     // once per iteration, after all steps: the next scale
//
// With a PipelineStage every rank has a scaler: the last one scales the loss, which `stage.step`
// then returns scaled, and all call the rest. A step is skipped if any stage overflows, so the
// first of unscale_ and step is a collective.
//
// One scaler serves several losses (scale each) and several optimizers (step each, then one
// update). All ranks skip the same steps without communication, because they average the gradients.
//
// With AdamW and SGD of this library no call waits for a GPU, except SGD with momentum until its
// first step is taken. With other optimizers step() waits.
//
// Throws UsageError for: step or unscale_ before the first scale; unscale_ twice, or after step,
// for one optimizer in one iteration; step twice; an optimizer without any gradient; update without
// a step; unscale_ of float16 gradients (keep the weights in float32, as Autocast does).
//
// Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018. Python's counterpart, with
// the same numbers at each step: torch.amp.GradScaler.
class GradScaler {
 public:
  // Throws UsageError for an option outside its range.
  explicit GradScaler(GradScalerOptions options = {});
  GradScaler(const GradScaler&) = delete;  // two would change one scale
  GradScaler& operator=(const GradScaler&) = delete;
  GradScaler(GradScaler&&) = default;
  GradScaler& operator=(GradScaler&&) = default;
  ~GradScaler() = default;

  // loss × scale, to call backward on. The first call puts the scale on the loss's device.
  torch::Tensor scale(const torch::Tensor& loss);
  std::vector<torch::Tensor> scale(const std::vector<torch::Tensor>& losses);

  // Divides the gradients of the optimizer's parameters by the scale.
  void unscale_(torch::optim::Optimizer& optimizer);

  // Whether unscale_ or step was called for the optimizer since the last update. drop_unscaled ends
  // what unscale_ began, for gradients that are dropped without a step.
  bool is_unscaled(const torch::optim::Optimizer& optimizer) const;
  void drop_unscaled(const torch::optim::Optimizer& optimizer);

  // optimizer.step(), unless a gradient is inf or NaN.
  StepResult step(torch::optim::Optimizer& optimizer);

  // Sets the next scale, from the overflows since the last update or to `new_scale`.
  void update();
  void update(double new_scale);

  // For a caller who does not know whether another optimizer steps on the same losses: the next
  // scale() begins with update(), and so does the next question about the state.
  void update_later() { update_is_due_ = options_.enabled; }

  bool is_enabled() const { return options_.enabled; }

  // The current scale, 1 if disabled; the number of updates after a skipped step, in this process;
  // and both as "loss_scale" and "skipped_steps", empty if disabled. They wait for a GPU.
  double get_scale() const;
  std::int64_t skipped_steps() const;
  std::map<std::string, double> metrics() const;

  // scale, growth_factor, backoff_factor, growth_interval and _growth_tracker, the good steps since
  // the last change: the state of Python's GradScaler. Empty if disabled. Waits for a GPU.
  static constexpr bool kSavedByRank0 = true;  // of all ranks; see json_part
  nlohmann::json state_dict() const;

  // Loads it in two halves, so that a checkpoint of several parts is applied whole or not at all.
  // plan_load() checks the state and changes nothing; throws DataError naming `origin`. The
  // function that it returns applies the state; the scaler must not have moved. Disabled: no
  // effect. load_state_dict() does both.
  [[nodiscard]] std::function<void()> plan_load(const nlohmann::json& state,
                                                std::string_view origin);
  void load_state_dict(const nlohmann::json& state, std::string_view origin);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };

  // Of one optimizer since the last update.
  struct OptimizerState {
    Stage stage = Stage::kReady;
    std::unordered_map<torch::Device, torch::Tensor> found_inf;  // float32 scalar per device
  };

  void apply(const GradScalerOptions& options, std::int64_t tracker);
  void put_on(const torch::Device& device);
  OptimizerState& state_of(const torch::optim::Optimizer& optimizer, const char* operation);
  torch::Tensor found_inf_of(const OptimizerState& state) const;

  // 1 if any optimizer found inf or NaN, else 0; undefined without a step. Counts a skipped step.
  torch::Tensor count_skipped() const;
  void update_scale() const;
  void update_if_due() const;

  GradScalerOptions options_;
  std::int64_t first_tracker_ = 0;
  torch::Tensor scale_;    // float32 scalar; undefined before the first scale()
  torch::Tensor tracker_;  // int32 scalar: good steps since the last change
  torch::Tensor skipped_;  // float64 scalar, to which found_inf is added in one kernel
  // Change with an update that is due, which a question about the scale makes.
  mutable bool update_is_due_ = false;
  mutable std::unordered_map<const torch::optim::Optimizer*, OptimizerState> states_;
};

}  // namespace ladder
