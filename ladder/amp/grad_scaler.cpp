// SPDX-License-Identifier: Apache-2.0
#include "ladder/amp/grad_scaler.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/core.h>
#include <torch/utils.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "ladder/core/error.h"
#include "ladder/io/json.h"
#include "ladder/nn/model.h"
#include "ladder/optim/fused_optimizer.h"
#include "ladder/optim/network_part.h"

namespace ladder {
namespace {

constexpr const char* kName = "GradScaler";

using FoundInf = std::unordered_map<torch::Device, torch::Tensor>;
using Gradients =
    std::unordered_map<torch::Device,
                       std::unordered_map<torch::ScalarType, std::vector<torch::Tensor>>>;

torch::Tensor scalar_on(const torch::Device& device, torch::ScalarType dtype, double value) {
  return torch::full({}, value, torch::dtype(dtype).device(device));
}

// The scale is a float32 tensor, and so is its inverse.
constexpr float kLeastScale = std::numeric_limits<float>::min();

bool is_scale(double value) {
  return value >= kLeastScale && value <= std::numeric_limits<float>::max();
}

// The violated condition, or "".
std::string problem_of(const GradScalerOptions& options, std::int64_t tracker) {
  if (!is_scale(options.init_scale)) return "a finite scale > 0";
  if (!(options.growth_factor > 1.0)) return "growth_factor > 1";
  const bool backs_off = options.backoff_factor > 0.0 && options.backoff_factor < 1.0;
  if (!backs_off) return "backoff_factor between 0 and 1";
  if (options.growth_interval <= 0) return "growth_interval > 0";
  if (tracker < 0 || tracker > std::numeric_limits<std::int32_t>::max()) {
    return "_growth_tracker from 0 to 2147483647";
  }
  return "";
}

[[noreturn]] void refuse(const char* problem, const char* hint) {
  throw UsageError::conflict(kName, problem, hint);
}

// Grouped for kernel calls, which take the gradients of one device and one dtype. None in a stage
// of a pipeline that is frozen.
Gradients gradients_of(const torch::optim::Optimizer& optimizer) {
  Gradients gradients;
  const auto parameters = parameters_of(optimizer);
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    require_dense_gradient(kName, "a parameter", gradient);
    gradients[gradient.device()][gradient.scalar_type()].push_back(gradient);
  }
  if (gradients.empty() && group_of_parts(parameters)) gradients[parameters.front().device()];
  if (gradients.empty()) {
    refuse("no parameter of this optimizer has a gradient",
           "call scaler.scale(loss).backward() first, on a loss that depends on them");
  }
  return gradients;
}

// Multiplies all gradients by `factor`; returns 1 for each device with one that is not finite. In a
// stage of a pipeline, 1 if there is one in any stage.
FoundInf multiply_and_check(const Gradients& gradients, const torch::Tensor& factor,
                            const torch::optim::Optimizer& optimizer) {
  const torch::NoGradGuard no_grad;
  FoundInf found;
  for (const auto& [device, by_dtype] : gradients) {
    auto& found_inf = found[device] = scalar_on(device, torch::kFloat32, 0.0);
    const auto there = factor.to(device, /*non_blocking=*/true);
    for (const auto& [dtype, tensors] : by_dtype) {
      at::_amp_foreach_non_finite_check_and_unscale_(tensors, found_inf, there);
    }
  }
  const auto stages = group_of_parts(parameters_of(optimizer));
  if (stages) stages->all_reduce(found.begin()->second, ReduceOp::kMax);  // a stage has one device
  return found;
}

}  // namespace

void StepResult::prefetch() {
  if (!found_inf_.defined() || found_inf_.is_cpu() || copied_ != nullptr) return;
  const auto device = found_inf_.device();
  const auto pinned = found_inf_.options().device(torch::kCPU).pinned_memory(true);
  auto on_host = torch::empty({}, pinned);
  on_host.copy_(found_inf_, /*non_blocking=*/true);
  found_inf_ = on_host;
  copied_ = std::make_shared<c10::Event>(device.type());
  copied_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

bool StepResult::taken() const {
  if (!found_inf_.defined()) return true;
  if (copied_ != nullptr) copied_->synchronize();
  return found_inf_.item<float>() == 0.0F;
}

GradScaler::GradScaler(GradScalerOptions options) : options_(options) {
  const auto problem = problem_of(options_, 0);
  if (!problem.empty()) {
    throw UsageError::malformed(
        kName, problem,
        fmt::format("scale {}, growth {} every {}, backoff {}", options_.init_scale,
                    options_.growth_factor, options_.growth_interval, options_.backoff_factor),
        "leave the fields of GradScalerOptions at their defaults");
  }
}

void GradScaler::put_on(const torch::Device& device) {
  if (scale_.defined()) return;
  scale_ = scalar_on(device, torch::kFloat32, options_.init_scale);
  tracker_ = scalar_on(device, torch::kInt32, static_cast<double>(first_tracker_));
  skipped_ = scalar_on(device, torch::kFloat64, 0.0);
}

torch::Tensor GradScaler::scale(const torch::Tensor& loss) {
  if (!options_.enabled) return loss;
  update_if_due();
  put_on(loss.device());
  return loss * scale_.to(loss.device(), /*non_blocking=*/true);
}

std::vector<torch::Tensor> GradScaler::scale(const std::vector<torch::Tensor>& losses) {
  std::vector<torch::Tensor> scaled;
  for (const auto& loss : losses) scaled.push_back(scale(loss));
  return scaled;
}

GradScaler::OptimizerState& GradScaler::state_of(const torch::optim::Optimizer& optimizer,
                                                 const char* operation) {
  if (!scale_.defined()) {
    const auto parameters = parameters_of(optimizer);
    if (group_of_parts(parameters)) put_on(parameters.front().device());
  }
  if (!scale_.defined()) {
    throw UsageError::conflict(fmt::format("{}::{}", kName, operation),
                               "no loss was scaled with scale() before",
                               "scaler.scale(loss).backward() instead of loss.backward()");
  }
  return states_[&optimizer];
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  auto& state = state_of(optimizer, "unscale_");
  if (state.stage == Stage::kUnscaled) {
    refuse("unscale_ twice for one optimizer: the gradients would be divided twice",
           "call it once between backward and step; update() begins the next iteration");
  }
  if (state.stage == Stage::kStepped) {
    refuse("unscale_ after step: step has divided the gradients already",
           "call unscale_ before step; update() begins the next iteration");
  }
  const auto gradients = gradients_of(optimizer);
  for (const auto& [device, by_dtype] : gradients) {
    if (!by_dtype.contains(torch::kFloat16)) continue;
    refuse("gradients in float16 cannot be unscaled: they would vanish again",
           "keep the parameters in float32; Autocast converts them where that is safe");
  }
  const auto inverse = scale_.to(torch::kFloat64).reciprocal().to(torch::kFloat32);
  state = {Stage::kUnscaled, multiply_and_check(gradients, inverse, optimizer)};
}

bool GradScaler::is_unscaled(const torch::optim::Optimizer& optimizer) const {
  const auto found = states_.find(&optimizer);
  return found != states_.end() && found->second.stage != Stage::kReady;
}

void GradScaler::drop_unscaled(const torch::optim::Optimizer& optimizer) {
  const auto found = states_.find(&optimizer);
  if (found != states_.end() && found->second.stage == Stage::kUnscaled) states_.erase(found);
}

torch::Tensor GradScaler::found_inf_of(const OptimizerState& state) const {
  torch::Tensor sum;
  for (const auto& [device, found_inf] : state.found_inf) {
    const auto here = found_inf.to(scale_.device(), /*non_blocking=*/true);
    sum = sum.defined() ? sum + here : here;
  }
  return state.found_inf.size() == 1 ? sum : sum.clamp_max(1.0);
}

StepResult GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return StepResult({});
  }
  auto& state = state_of(optimizer, "step");
  if (state.stage == Stage::kStepped) {
    refuse("step twice for one optimizer in one iteration", "call scaler.update() after the step");
  }
  auto* fused = dynamic_cast<FusedOptimizer*>(&optimizer);
  if (state.stage == Stage::kReady && fused == nullptr) unscale_(optimizer);
  if (state.stage == Stage::kReady) {
    const auto one = scalar_on(scale_.device(), torch::kFloat32, 1.0);
    state.found_inf = multiply_and_check(gradients_of(optimizer), one, optimizer);
  }
  const auto found_inf = found_inf_of(state);
  const StepResult result(found_inf);
  if (fused != nullptr) {
    const auto& device = state.found_inf.begin()->first;  // a fused optimizer has one
    GradScaling scaling{.found_inf = found_inf.to(device, /*non_blocking=*/true)};
    if (state.stage == Stage::kReady) scaling.grad_scale = scale_.to(device, /*non_blocking=*/true);
    fused->step_scaled(scaling);
  } else if (result.taken()) {
    optimizer.step();
  }
  state.stage = Stage::kStepped;
  return result;
}

torch::Tensor GradScaler::count_skipped() const {
  torch::Tensor found_inf;
  for (const auto& [optimizer, state] : states_) {
    if (state.found_inf.empty()) continue;
    const auto found = found_inf_of(state);
    found_inf = found_inf.defined() ? (found_inf + found).clamp_max(1.0) : found;
  }
  if (found_inf.defined()) skipped_.add_(found_inf);
  return found_inf;
}

void GradScaler::update() {
  if (options_.enabled) update_scale();
}

void GradScaler::update_scale() const {
  update_is_due_ = false;
  const auto found_inf = count_skipped();
  if (!found_inf.defined()) {
    throw UsageError::conflict("GradScaler::update", "no step since the last update",
                               "scaler.step(optimizer), for each optimizer, then scaler.update()");
  }
  const torch::NoGradGuard no_grad;
  auto scale = scale_;
  auto tracker = tracker_;
  at::_amp_update_scale_(scale, tracker, found_inf, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  scale.clamp_min_(kLeastScale);  // gradients divided by 0 would be steps to NaN
  states_.clear();
}

void GradScaler::update_if_due() const {
  if (update_is_due_) update_scale();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  if (!is_scale(new_scale)) {
    throw UsageError::out_of_range("GradScaler::update", new_scale, "a finite scale > 0",
                                   "update() without a number follows the gradients");
  }
  update_is_due_ = false;
  count_skipped();
  options_.init_scale = new_scale;
  if (scale_.defined()) scale_.fill_(new_scale);
  states_.clear();
}

double GradScaler::get_scale() const {
  if (!options_.enabled) return 1.0;
  update_if_due();
  return scale_.defined() ? scale_.item<double>() : options_.init_scale;
}

std::int64_t GradScaler::skipped_steps() const {
  update_if_due();
  return skipped_.defined() ? skipped_.item<std::int64_t>() : 0;
}

nlohmann::json GradScaler::state_dict() const {
  if (!options_.enabled) return nlohmann::json::object();
  return {{"scale", get_scale()},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", options_.growth_interval},
          {"_growth_tracker", tracker_.defined() ? tracker_.item<std::int64_t>() : first_tracker_}};
}

std::function<void()> GradScaler::plan_load(const nlohmann::json& state, std::string_view origin) {
  if (!options_.enabled) return [] {};
  const JsonReader saved(
      state, json_data_error(origin, "it must come from state_dict() of an enabled GradScaler"));
  GradScalerOptions options = options_;
  options.init_scale = saved.number("scale");
  options.growth_factor = saved.number("growth_factor");
  options.backoff_factor = saved.number("backoff_factor");
  options.growth_interval = saved.count("growth_interval");
  const auto tracker = saved.count("_growth_tracker");
  const auto problem = problem_of(options, tracker);
  if (!problem.empty()) saved.refuse("a gradient scaler with " + problem, state.dump());
  return [this, options, tracker] { apply(options, tracker); };
}

void GradScaler::load_state_dict(const nlohmann::json& state, std::string_view origin) {
  plan_load(state, origin)();
}

void GradScaler::apply(const GradScalerOptions& options, std::int64_t tracker) {
  update_if_due();
  options_ = options;
  first_tracker_ = tracker;
  if (!scale_.defined()) return;
  scale_.fill_(options.init_scale);
  tracker_.fill_(tracker);
}

std::map<std::string, double> GradScaler::metrics() const {
  if (!options_.enabled) return {};
  return {{"loss_scale", get_scale()}, {"skipped_steps", static_cast<double>(skipped_steps())}};
}

}  // namespace ladder
