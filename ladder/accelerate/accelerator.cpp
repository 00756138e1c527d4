// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/accelerator.h"

#include <fmt/core.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "ladder/accelerate/dispatch.h"
#include "ladder/amp/precision.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/comm/run_together.h"
#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/core/one_thread.h"
#include "ladder/optim/clip_grad.h"
#include "ladder/parallel/fully_sharded_data_parallel.h"
#include "ladder/parallel/replicated_model.h"

namespace ladder {
namespace {

void require_one_number(const torch::Tensor& loss) {
  if (loss.defined() && loss.numel() == 1) return;
  throw UsageError::malformed(
      "Accelerator::backward", "a loss of one number",
      loss.defined() ? fmt::format("{} numbers", loss.numel()) : std::string("an undefined tensor"),
      "such as num_items().mean(sum) of a batch");
}

// The prepared wrapper that has divided `model`; null if none has.
FullyShardedDataParallel* sharded_wrapper(
    const std::vector<std::shared_ptr<torch::nn::Module>>& prepared,
    const torch::nn::Module& model) {
  for (const auto& each : prepared) {
    auto* const wrapper = dynamic_cast<FullyShardedDataParallel*>(each.get());
    if (wrapper != nullptr && &unwrapped(*wrapper) == &unwrapped(model)) return wrapper;
  }
  return nullptr;
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options, AcceleratorHandlers handlers)
    : shared_(std::move(options), std::move(handlers)),
      objects_(shared_),
      trackers_({.log_with = shared_.options.log_with,
                 .logging_dir = Project::logging_dir(shared_.options.project),
                 .is_main_process = is_main_process()}),
      project_(shared_, objects_) {}

Accelerator::~Accelerator() = default;

RunSetup Accelerator::setup() {
  CheckpointHooks checkpoints = {.last = [this] { return project_.last_checkpoint(); }};
  if (project_.has_folder()) checkpoints.save = [this] { return save_state(); };
  return {shared_.group, shared_.device, shared_.config.mixed_precision, shared_.threads,
          std::move(checkpoints)};
}

Model& Accelerator::unwrap_model(Model& model) {
  const auto* const wrapper = dynamic_cast<const ModelWrapper*>(&model);
  return wrapper == nullptr ? model : unwrap_model(wrapper->module());
}

std::shared_ptr<const Dataset> Accelerator::load_dataset(
    const std::function<std::shared_ptr<const Dataset>()>& make) const {
  if (!shared_.options.data_loader.dispatch_batches) return make();
  return dataset_of_main_process(make, shared_.group);
}

bool Accelerator::needs_autocast(const std::vector<torch::nn::Module*>& modules) const {
  const auto is_given = [&](const PreparedModule& own) {
    return std::ranges::find(modules, own.module.get()) != modules.end();
  };
  return shared_.is_mixed() && std::ranges::any_of(objects_.modules(), is_given);
}

Accelerator::Accumulation Accelerator::begin_batch(const std::vector<torch::nn::Module*>& modules) {
  if (shared_.gradients->has_left_window()) drop_left_window();
  shared_.gradients->begin_batch();
  Accumulation accumulation;
  if (!sync_gradients() && !shared_.options.gradient_accumulation.sync_each_batch) {
    for (auto* const module : modules) pause(*module, accumulation);
  }
  if (needs_autocast(modules)) accumulation.autocast_.reset(new auto(autocast()));
  return accumulation;
}

void Accelerator::pause(torch::nn::Module& module, Accumulation& accumulation) {
  if (auto* const replicated = dynamic_cast<ReplicatedModel*>(&module)) {
    accumulation.pauses_.push_back(replicated->no_sync());
  }
  for (const auto& own : objects_.modules()) {
    if (own.module.get() != &module || own.reducer == nullptr) continue;
    accumulation.pauses_.push_back(own.reducer->no_sync());
  }
}

Accelerator::Accumulation Accelerator::no_sync(torch::nn::Module& module, bool when) {
  Accumulation accumulation;
  if (when) pause(module, accumulation);
  return accumulation;
}

void Accelerator::backward(const torch::Tensor& loss) {
  require_one_number(loss);
  const bool is_mixed = shared_.is_mixed() && !objects_.modules().empty();
  const bool misses = shared_.gradients->num_steps() > 1 && !shared_.gradients->accumulates();
  if (misses || (is_mixed && !had_autocast_)) {
    throw UsageError::conflict(
        "Accelerator::backward",
        fmt::format("no accelerator.accumulate(model) for this batch, and {}",
                    misses ? "gradient_accumulation_steps above 1" : "mixed precision"),
        "begin the body of the loop with "
        "const auto accumulation = accelerator.accumulate(*model);");
  }
  const bool is_first = shared_.gradients->backward_calls++ == 0;
  if (is_first && project_.has_folder()) {
    require_models(objects_.state());
    project_.require_own_checkpoints();
  }
  const double weight = shared_.gradients->loss_weight();
  const auto scaled = shared_.scaler->scale(weight == 1.0 ? loss : loss * weight);
  if (shared_.handlers.ddp.find_unused_parameters) {
    for (const auto& own : objects_.modules()) {
      if (own.reducer == nullptr) continue;
      own.reducer->before_forward();
      own.reducer->after_forward({scaled});
    }
  }
  std::optional<Autocast> without_autocast;
  if (is_mixed) without_autocast.emplace(shared_.device, torch::kFloat32);
  backward_with_check(scaled);
  if (sync_gradients() && shared_.handlers.ddp.broadcast_buffers) send_buffers_of_frozen();
  if (objects_.optimizers().size() > 1) warn_of_foreign_gradients();
}

// The reducers do not see a backward through networks that are not prepared.
void Accelerator::backward_with_check(const torch::Tensor& loss) {
  if (!use_distributed() || !sync_gradients() || !loss.requires_grad()) return loss.backward();
  const auto hook =
      loss.register_hook([local = local_](const torch::Tensor& /*gradient*/) { local->note(); });
  loss.backward();
  loss.remove_hook(hook);
  local_->compare(nullptr, shared_.group);
}

// The forwards of a network that is frozen for now change its running statistics, and no backward
// of its own sends them.
void Accelerator::send_buffers_of_frozen() const {
  for (const auto& [module, reducer] : objects_.modules()) {
    if (reducer == nullptr) continue;
    const auto weights = module->parameters();
    const bool is_frozen = std::ranges::none_of(weights, &torch::Tensor::requires_grad);
    if (is_frozen && module->is_training()) reducer->broadcast_buffers();
  }
}

void Accelerator::warn_of_foreign_gradients() {
  for (const auto& optimizer : objects_.optimizers()) {
    optimizer->note_backward();
    if (!optimizer->used_foreign_gradients() || std::exchange(warned_of_gradients_, true)) continue;
    shared_.log.warn(
        "a step used gradients of a backward that another optimizer's step followed: call "
        "zero_grad() before the backward, and freeze the other network in it "
        "(ladder::FreezeGuard)");
  }
}

NumItems Accelerator::num_items(std::int64_t own) const {
  const double weight = shared_.gradients->round_weight();
  auto count = torch::tensor(weight == 0.0 ? 0 : own, torch::kInt64);
  shared_.group.all_reduce(count);
  const double processes = shared_.options.replicate.in_micro_batches() || weight == 0.0
                               ? 1.0
                               : num_processes() / weight;
  return {.global = std::max<std::int64_t>(count.item<std::int64_t>(), 1),
          .processes = std::llround(processes)};
}

void Accelerator::drop_window() {
  shared_.gradients->drop_window();
  for (const auto& optimizer : objects_.optimizers()) optimizer->drop_gradients();
  for (const auto& model : objects_.models()) {
    if (auto* const replicated = dynamic_cast<ReplicatedModel*>(model.get())) replicated->forget();
  }
}

void Accelerator::drop_left_window() {
  shared_.log.info("dropped the gradients of an accumulation window, whose loop ended early");
  drop_window();
}

void Accelerator::unscale_gradients() {
  for (const auto& optimizer : objects_.optimizers()) optimizer->unscale_gradients();
}

torch::Tensor Accelerator::clip_grad_norm_(const std::vector<torch::Tensor>& parameters,
                                           double max_norm, double norm_type) {
  if (!sync_gradients()) return {};
  unscale_gradients();
  std::optional<OneThread> one_thread;
  if (shared_.options.replicate.in_micro_batches()) one_thread.emplace();
  return ladder::clip_grad_norm_(parameters, max_norm, norm_type);
}

void Accelerator::clip_grad_value_(const std::vector<torch::Tensor>& parameters,
                                   double clip_value) {
  if (!sync_gradients()) return;
  unscale_gradients();
  ladder::clip_grad_value_(parameters, clip_value);
}

Autocast Accelerator::autocast() const {
  had_autocast_ = true;
  return {shared_.device, dtype_of(shared_.config.mixed_precision)};
}

bool Accelerator::optimizer_step_was_skipped() const {
  return std::ranges::any_of(objects_.optimizers(), &AcceleratedOptimizer::step_was_skipped);
}

void Accelerator::print(std::string_view line) const {
  if (is_main_process()) print_line(line);
}

void Accelerator::main_process_first(const std::function<void()>& run) const {
  on_rank_0(shared_.group, "main_process_first", run);
  if (!is_main_process()) run();
}

void Accelerator::local_main_process_first(const std::function<void()>& run) const {
  run_or_fail_together(shared_.group, "local_main_process_first",
                       [&] { on_local_main_process(run); });
  if (!is_local_main_process()) run();
}

bool Accelerator::check_trigger() {
  auto raised = torch::tensor(std::exchange(trigger_, false) ? 1 : 0, torch::kInt64);
  shared_.group.all_reduce(raised, ReduceOp::kMax);
  return raised.item<std::int64_t>() != 0;
}

void Accelerator::save_model(const torch::nn::Module& model, const std::string& path) const {
  FullyShardedDataParallel* const sharded = sharded_wrapper(objects_.models(), model);
  if (sharded != nullptr) sharded->unshard();
  try {
    on_rank_0(shared_.group, "save_model", [&] { ladder::save_model(model, path); });
  } catch (...) {
    if (sharded != nullptr) sharded->reshard();
    throw;
  }
  if (sharded != nullptr) sharded->reshard();
}

void Accelerator::init_trackers(const std::string& project_name,
                                const nlohmann::ordered_json& config) {
  if (project_.has_loaded()) trackers_.go_on();
  trackers_.start(project_name, config.is_null() ? nlohmann::ordered_json::object() : config);
}

void Accelerator::log(const std::map<std::string, double>& values, std::int64_t step) {
  if (!curves_end_) write_curves([&] { trackers_.log(values, step); });
}

void Accelerator::write_curves(const std::function<void()>& write) {
  try {
    write();
  } catch (const SystemError& error) {
    shared_.log.warn(fmt::format("the curves end here: {}", error.what()));
    curves_end_ = true;
  }
}

void Accelerator::end_training() {
  write_curves([&] { trackers_.finish(); });
  wait_for_everyone();
}

std::uint64_t set_seed(std::uint64_t seed, bool device_specific, const ProcessGroup& group) {
  const auto own = device_specific ? seed + static_cast<std::uint64_t>(group.rank()) : seed;
  torch::manual_seed(own);
  return own;
}

Evaluation evaluate(const Accelerator& accelerator, Model& model,
                    const AcceleratedDataLoader& loader, const LossSum& loss_sum) {
  const torch::NoGradGuard no_grad;
  const EvalGuard eval(model);
  ClassificationMeter meter(loss_sum, accelerator.device());
  for (const Batch& batch : loader) {
    const auto [output, targets] =
        accelerator.gather_for_metrics(std::tuple{model.forward(batch.inputs), batch.targets});
    meter.add(output, targets);
  }
  return meter.result();
}

}  // namespace ladder
