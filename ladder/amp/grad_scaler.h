// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ladder {

struct GradScalerOptions {
  double init_scale = 65536.0;          // the first scale; > 0
  double growth_factor = 2.0;           // times this after growth_interval good steps; > 1
  double backoff_factor = 0.5;          // times this after a bad step; in (0, 1)
  std::int64_t growth_interval = 2000;  // good steps in a row; > 0
  bool enabled = true;                  // false: all of it does nothing, and step() just steps
};

// Did a step change the weights?
class StepResult {
 public:
  explicit StepResult(torch::Tensor found_inf) : found_inf_(std::move(found_inf)) {}

  // false if a gradient was inf or NaN, so that the step was skipped. Reading it waits for the
  // GPU: the one host sync of a scaled step, and yours to leave out.
  bool taken() const { return !found_inf_.defined() || found_inf_.item<float>() == 0.0F; }

 private:
  torch::Tensor found_inf_;  // on the device; undefined = taken
};

// Keeps small gradients alive in float16.
//
// float16 knows nothing below 6e-8, where many gradients lie: they would become 0. So the
// loss is multiplied by a large scale before backward, and with it every gradient; before the
// optimizer's step they are divided again. If the scale was too large, gradients overflow to inf:
// that step is skipped and the scale halved. After 2000 good steps it is doubled. It settles just
// below the largest value that works.
//
//     GradScaler scaler;
//     scaler.scale(loss).backward();       // gradients × scale
//     scaler.unscale_(optimizer);          // only to look at or clip them: gradients ÷ scale
//     scaler.step(optimizer);              // divides them, if not done; skips if one is not finite
//     scaler.update();                     // once an iteration, after all steps: the next scale
//
// One scaler serves several losses (scale each; one backward or several) and several optimizers
// (step each, then one update). It treats each optimizer by itself: one may be skipped while
// another steps; the scale shrinks if any was.
//
// On several ranks, all skip the same steps without asking each other: averaging the gradients
// carries an inf or NaN of one rank to all. So scale before backward and step after it.
//
// With AdamW and SGD of this library nothing waits for a GPU (SGD with momentum alone does, until
// its first step is taken). With other optimizers step() must read whether to step, which waits.
//
// bfloat16 has the range of float32 and needs no scaler. Disabled, a scaler does nothing, so the
// same loop serves every precision.
//
// UsageError: step or unscale_ before the first scale; unscale_ twice, or after step, for one
// optimizer in one iteration; step twice; an optimizer without any gradient; update without a step;
// unscale_ of gradients that are float16 themselves (keep the weights in float32: Autocast does).
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

  // Divides the gradients of the optimizer's parameters by the scale, to be looked at or clipped.
  void unscale_(torch::optim::Optimizer& optimizer);

  // optimizer.step(), unless a gradient is inf or NaN.
  StepResult step(torch::optim::Optimizer& optimizer);

  // Computes the next scale from what the steps since the last update found.
  void update();

  // The same, with a scale of your own.
  void update(double new_scale);

  bool is_enabled() const { return options_.enabled; }

  // The present scale, 1 if disabled; and how many updates followed a skipped step, in this
  // process. Both wait for a GPU.
  double get_scale() const;
  std::int64_t skipped_steps() const;

  // Both by name, for the record of a run; empty if disabled.
  std::map<std::string, double> numbers() const;

  // What a run needs to go on with: scale, growth_factor, backoff_factor, growth_interval and
  // _growth_tracker, the good steps since the last change. The names are Python's, whose GradScaler
  // takes the same; empty if disabled. Waits for a GPU.
  nlohmann::json state_dict() const;

  // Takes it back, in two halves, so that a checkpoint of several parts is applied whole or not at
  // all. This one checks everything and changes nothing: DataError, naming `origin`. What it
  // returns applies it; call that while the scaler lives, in its place. Does nothing if disabled.
  [[nodiscard]] std::function<void()> plan_load(const nlohmann::json& state,
                                                std::string_view origin);

  // Both halves.
  void load_state_dict(const nlohmann::json& state, std::string_view origin);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };

  // What happened to one optimizer since the last update.
  struct OptimizerState {
    Stage stage = Stage::kReady;
    std::unordered_map<torch::Device, torch::Tensor> found_inf;  // float32 scalar a device
  };

  void apply(const GradScalerOptions& options, std::int64_t tracker);
  void put_on(const torch::Device& device);
  OptimizerState& state_of(const torch::optim::Optimizer& optimizer, const char* operation);
  torch::Tensor found_inf_of(const OptimizerState& state) const;

  // What all optimizers found, above 0 if one was skipped, which it counts; undefined without any.
  torch::Tensor count_skipped();

  GradScalerOptions options_;
  std::int64_t first_tracker_ = 0;
  torch::Tensor scale_;    // float32 scalar; undefined before the first scale()
  torch::Tensor tracker_;  // int32 scalar: good steps since the last change
  torch::Tensor skipped_;  // int64 scalar
  std::unordered_map<const torch::optim::Optimizer*, OptimizerState> states_;
};

// The scaler's state beside the weights, as text in the metadata of a safetensors file. So the
// file holds the weights alone, under their own names, for any reader that looks for no more:
//
//     save_model(model, path, metadata_of(scaler));
//     load_model(model, path);
//     load_scaler(scaler, path);
//
// In Python:
//
//     with safetensors.safe_open(path, "pt") as file:
//         scaler.load_state_dict(json.loads(file.metadata()["scaler"]))

// {"scaler": state_dict() as JSON}, or nothing if the scaler is disabled.
std::map<std::string, std::string> metadata_of(const GradScaler& scaler);

// Leaves the scaler as it is when the file has no state of one, or the scaler is disabled. Throws
// DataError if the file or the state is damaged.
void load_scaler(GradScaler& scaler, const std::string& path);

}  // namespace ladder
