// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/accelerator.h"

#include <fmt/core.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <system_error>

#include "ladder/accelerate/dispatch.h"
#include "ladder/amp/precision.h"
#include "ladder/armour/checkpoint_folder.h"
#include "ladder/checkpoint/optimizer_archive.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/comm/init_process_group.h"
#include "ladder/comm/run_together.h"
#include "ladder/core/device.h"
#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/core/one_thread.h"
#include "ladder/exact/exact_data_parallel.h"
#include "ladder/guest/torch_lr_scheduler.h"
#include "ladder/io/atomic_file.h"
#include "ladder/launch/signals.h"
#include "ladder/monitor/run_settings.h"
#include "ladder/optim/clip_grad.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/zero_redundancy_optimizer.h"

namespace ladder {
namespace {

constexpr Rule<AcceleratorOptions> kRules[] = {
    {"exact_sums",
     [](const AcceleratorOptions& o) {
       return o.exact_sums && o.data_loader.mode != LoaderMode::kGlobal;
     },
     "it needs batches that do not depend on the number of processes",
     "set data_loader.mode to LoaderMode::kGlobal, in which the processes divide each batch"},
};

std::string device_request(const AcceleratorOptions& options, const AccelerateConfig& config) {
  if (config.use_cpu) return "cpu";
  return options.device == "auto" && !config.device.empty() ? config.device : options.device;
}

ProcessGroupOptions group_options(AcceleratorOptions options, const AccelerateConfig& config) {
  auto group = options.process_group;
  group.device = device_request(options, config);
  // A variable may set these on one rank alone.
  options.debug = config.debug;
  options.gradient_accumulation.num_steps = config.gradient_accumulation_steps;
  options.mixed_precision = config.mixed_precision;
  auto settings = settings_of_ranks(settings_of(accelerator_option_table(), options));
  settings["exact_sums"] =
      options.exact_sums ? std::to_string(options.exact_sums->micro_batch) : "unset";
  settings.merge(group.settings);
  group.settings = std::move(settings);
  return group;
}

GradScalerOptions scaler_options(GradScalerOptions options, Precision precision) {
  options.enabled = options.enabled && precision == Precision::kFp16;
  return options;
}

TrackersOptions tracker_options(const AcceleratorOptions& options, const ProcessGroup& group) {
  const auto& project = options.project;
  return {.log_with = options.log_with,
          .logging_dir = project.logging_dir.empty() ? project.project_dir : project.logging_dir,
          .is_main_process = group.rank() == 0};
}

void require_one_number(const torch::Tensor& loss) {
  if (loss.defined() && loss.numel() == 1) return;
  throw UsageError::malformed(
      "Accelerator::backward", "a loss of one number",
      loss.defined() ? fmt::format("{} numbers", loss.numel()) : std::string("an undefined tensor"),
      "such as num_items().mean(sum) of a batch");
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options, AcceleratorHandlers handlers)
    : options_(std::move(options)),
      handlers_(std::move(handlers)),
      config_(accelerate_config(options_)),
      group_(init_process_group(group_options(options_, config_))),
      log_({.rank = group_.rank(), .world_size = group_.world_size(), .quiet = options_.quiet}),
      threads_(prepare_process(
          {.requested = options_.threads, .local_world_size = group_.local_world_size()})),
      device_(choose_device(device_request(options_, config_), log_, group_.local_rank())),
      scaler_(
          std::make_shared<GradScaler>(scaler_options(handlers_.scaler, config_.mixed_precision))),
      gradients_(
          std::make_shared<GradientState>(config_.gradient_accumulation_steps,
                                          options_.gradient_accumulation.sync_with_dataloader)),
      optimizers_(std::make_shared<PreparedOptimizers>()),
      trackers_(tracker_options(options_, group_)) {
  for (const auto& note : config_.notes) log_.info(note);
  require_rules(kRules, options_);
  choose_precision(config_.mixed_precision, device_, log_);
  make_project_folder();
  state_.scaler = scaler_;
  state_.device = device_;
}

Accelerator::~Accelerator() = default;

RunSetup Accelerator::setup() {
  CheckpointHooks checkpoints = {.last = [this] { return last_checkpoint_; }};
  if (!options_.project.project_dir.empty()) checkpoints.save = [this] { return save_state(); };
  return {group_, device_, config_.mixed_precision, threads_, std::move(checkpoints)};
}

Model& Accelerator::unwrap_model(Model& model) {
  const auto* const wrapper = dynamic_cast<const ModelWrapper*>(&model);
  return wrapper == nullptr ? model : unwrap_model(wrapper->module());
}

std::shared_ptr<const Dataset> Accelerator::load_dataset(
    const std::function<std::shared_ptr<const Dataset>()>& make) const {
  if (!options_.data_loader.dispatch_batches) return make();
  return dataset_of_main_process(make, group_);
}

bool Accelerator::needs_autocast(const std::vector<torch::nn::Module*>& modules) const {
  const auto is_given = [&](const PreparedModule& own) {
    return std::ranges::find(modules, own.module.get()) != modules.end();
  };
  return config_.mixed_precision != Precision::kFp32 && std::ranges::any_of(modules_, is_given);
}

Accelerator::Accumulation Accelerator::begin_batch(const std::vector<torch::nn::Module*>& modules) {
  if (gradients_->has_left_window()) drop_left_window();
  gradients_->begin_batch();
  Accumulation accumulation;
  if (!sync_gradients() && !options_.gradient_accumulation.sync_each_batch) {
    for (auto* const module : modules) pause(*module, accumulation);
  }
  if (needs_autocast(modules)) accumulation.autocast_.reset(new auto(autocast()));
  return accumulation;
}

void Accelerator::pause(torch::nn::Module& module, Accumulation& accumulation) {
  if (auto* const replicated = dynamic_cast<ReplicatedModel*>(&module)) {
    accumulation.pauses_.push_back(replicated->no_sync());
  }
  for (const auto& own : modules_) {
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
  const bool is_mixed = config_.mixed_precision != Precision::kFp32 && !modules_.empty();
  const bool misses = gradients_->num_steps() > 1 && !gradients_->accumulates();
  if (misses || (is_mixed && !had_autocast_)) {
    throw UsageError::conflict(
        "Accelerator::backward",
        fmt::format("no accelerator.accumulate(model) for this batch, and {}",
                    misses ? "gradient_accumulation_steps above 1" : "mixed precision"),
        "begin the body of the loop with "
        "const auto accumulation = accelerator.accumulate(*model);");
  }
  const bool is_first = gradients_->backward_calls++ == 0;
  if (is_first && !options_.project.project_dir.empty()) {
    require_models(state_);
    require_own_checkpoints();
  }
  const double weight = gradients_->loss_weight();
  const auto scaled = scaler_->scale(weight == 1.0 ? loss : loss * weight);
  if (handlers_.ddp.find_unused_parameters) {
    for (const auto& own : modules_) {
      if (own.reducer == nullptr) continue;
      own.reducer->before_forward();
      own.reducer->after_forward({scaled});
    }
  }
  std::optional<Autocast> without_autocast;
  if (is_mixed) without_autocast.emplace(device_, torch::kFloat32);
  backward_with_check(scaled);
  if (sync_gradients() && handlers_.ddp.broadcast_buffers) send_buffers_of_frozen();
  if (optimizers_->size() > 1) warn_of_foreign_gradients();
}

// The reducers do not see a backward through networks that are not prepared.
void Accelerator::backward_with_check(const torch::Tensor& loss) {
  if (!use_distributed() || !sync_gradients() || !loss.requires_grad()) return loss.backward();
  const auto hook =
      loss.register_hook([local = local_](const torch::Tensor& /*gradient*/) { local->note(); });
  loss.backward();
  loss.remove_hook(hook);
  local_->compare(nullptr, group_);
}

// The forwards of a network that is frozen for now change its running statistics, and no backward
// of its own sends them.
void Accelerator::send_buffers_of_frozen() const {
  for (const auto& [module, reducer] : modules_) {
    if (reducer == nullptr) continue;
    const auto weights = module->parameters();
    const bool is_frozen = std::ranges::none_of(weights, &torch::Tensor::requires_grad);
    if (is_frozen && module->is_training()) reducer->broadcast_buffers();
  }
}

void Accelerator::warn_of_foreign_gradients() {
  for (const auto& optimizer : *optimizers_) {
    optimizer->note_backward();
    if (!optimizer->used_foreign_gradients() || std::exchange(warned_of_gradients_, true)) continue;
    log_.warn(
        "a step used gradients of a backward that another optimizer's step followed: call "
        "zero_grad() before the backward, and freeze the other network in it "
        "(ladder::FreezeGuard)");
  }
}

NumItems Accelerator::num_items(std::int64_t own) const {
  const double weight = gradients_->round_weight();
  auto count = torch::tensor(weight == 0.0 ? 0 : own, torch::kInt64);
  group_.all_reduce(count);
  const double processes = options_.exact_sums || weight == 0.0 ? 1.0 : num_processes() / weight;
  return {.global = std::max<std::int64_t>(count.item<std::int64_t>(), 1),
          .processes = std::llround(processes)};
}

void Accelerator::drop_window() {
  gradients_->drop_window();
  for (const auto& optimizer : *optimizers_) optimizer->drop_gradients();
  for (const auto& model : state_.models) {
    if (auto* const replicated = dynamic_cast<ReplicatedModel*>(model.get())) replicated->forget();
  }
}

void Accelerator::drop_left_window() {
  log_.info("dropped the gradients of an accumulation window, whose loop ended early");
  drop_window();
}

void Accelerator::unscale_gradients() {
  for (const auto& optimizer : *optimizers_) optimizer->unscale_gradients();
}

torch::Tensor Accelerator::clip_grad_norm_(const std::vector<torch::Tensor>& parameters,
                                           double max_norm, double norm_type) {
  if (!sync_gradients()) return {};
  unscale_gradients();
  std::optional<OneThread> one_thread;
  if (options_.exact_sums) one_thread.emplace();
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
  return {device_, dtype_of(config_.mixed_precision)};
}

bool Accelerator::optimizer_step_was_skipped() const {
  return std::ranges::any_of(*optimizers_, &AcceleratedOptimizer::step_was_skipped);
}

torch::Tensor Accelerator::gather_samples(const torch::Tensor& tensor) const {
  if (gradients_->is_in_round()) {
    if (tensor.dim() == 0) {
      throw UsageError::malformed("gather_for_metrics", "rows, one per sample", "a scalar",
                                  "pass one value per sample, or use reduce");
    }
    const auto rows = gradients_->repeats_batch() ? tensor.narrow(0, 0, 0) : tensor;
    return gather_rows(rows, group_, config_.debug);
  }
  const EpochProgress* const pass = gradients_->progress();
  if (pass == nullptr) {
    throw UsageError::conflict("gather_for_metrics", "no loop over a prepared loader is running",
                               "call it inside the loop, or use gather");
  }
  if (tensor.dim() == 0 || tensor.size(0) != pass->local_size) {
    throw UsageError::malformed(
        "gather_for_metrics", fmt::format("{} rows, one per sample", pass->local_size),
        tensor.dim() == 0 ? "a scalar" : fmt::format("{} rows", tensor.size(0)),
        "a mean over the batch includes repeated samples: pass one value per sample, or use "
        "reduce");
  }
  const auto all = gather_rows(tensor, group_, config_.debug);
  return all.size(0) == pass->real_size() ? all : all.narrow(0, 0, pass->real_size());
}

void Accelerator::print(std::string_view line) const {
  if (is_main_process()) print_line(line);
}

void Accelerator::main_process_first(const std::function<void()>& run) const {
  on_rank_0(group_, "main_process_first", run);
  if (!is_main_process()) run();
}

void Accelerator::local_main_process_first(const std::function<void()>& run) const {
  run_or_fail_together(group_, "local_main_process_first", [&] { on_local_main_process(run); });
  if (!is_local_main_process()) run();
}

bool Accelerator::check_trigger() {
  auto raised = torch::tensor(std::exchange(trigger_, false) ? 1 : 0, torch::kInt64);
  group_.all_reduce(raised, ReduceOp::kMax);
  return raised.item<std::int64_t>() != 0;
}

void Accelerator::save_model(const torch::nn::Module& model, const std::string& path) const {
  on_rank_0(group_, "save_model", [&] { ladder::save_model(model, path); });
}

void Accelerator::init_trackers(const std::string& project_name,
                                const nlohmann::ordered_json& config) {
  if (resumed_) trackers_.go_on();
  trackers_.start(project_name, config.is_null() ? nlohmann::ordered_json::object() : config);
}

void Accelerator::log(const std::map<std::string, double>& values, std::int64_t step) {
  if (!curves_end_) write_curves([&] { trackers_.log(values, step); });
}

void Accelerator::write_curves(const std::function<void()>& write) {
  try {
    write();
  } catch (const SystemError& error) {
    log_.warn(fmt::format("the curves end here: {}", error.what()));
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
  const auto modes = modes_of(model);
  model.eval();
  ClassificationMeter meter(loss_sum, accelerator.device());
  for (const Batch& batch : loader) {
    const auto [output, targets] =
        accelerator.gather_for_metrics(std::tuple{model.forward(batch.inputs), batch.targets});
    meter.add(output, targets);
  }
  set_modes(model, modes);
  return meter.result();
}

}  // namespace ladder
