// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/trainer.h"

#include <ATen/Context.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/monitor/run_settings.h"
#include "ladder/trainer/argument_table.h"
#include "ladder/trainer/optimizer_factory.h"
#include "ladder/trainer/progress_callback.h"

namespace ladder {
namespace {

// The program's options, with the settings that are training arguments on top.
AcceleratorOptions accelerator_options(AcceleratorOptions options, const TrainingArguments& args) {
  if (args.fp16) options.mixed_precision = Precision::kFp16;
  if (args.bf16) options.mixed_precision = Precision::kBf16;
  options.gradient_accumulation.num_steps = args.gradient_accumulation_steps;
  options.cpu = options.cpu || args.use_cpu;
  options.data_loader = {.mode = args.accelerator_config.mode(),
                         .even_batches = args.accelerator_config.even_batches,
                         .dispatch_batches = args.accelerator_config.dispatch_batches};
  if (args.replicate_options().in_micro_batches()) {
    options.replicate.sums = args.sums;
    options.replicate.micro_batch = args.micro_batch;
  }
  options.project.project_dir = args.output_dir;
  if (!args.output_dir.empty()) options.project.logging_dir = args.output_dir + "/runs";
  options.log_with = args.report_to;
  options.scheduler_steps_per_call = 1;  // a schedule counts steps of the optimizer
  if (!args.ddp_backend.empty()) options.process_group.backend = args.ddp_backend;
  options.process_group.timeout = std::chrono::seconds(args.ddp_timeout);
  options.process_group.settings.merge(
      settings_of_ranks(settings_of(training_argument_table(), args)));
  return options;
}

AcceleratorHandlers accelerator_handlers(const TrainingArguments& args) {
  AcceleratorHandlers handlers;
  handlers.ddp.find_unused_parameters = args.ddp_find_unused_parameters;
  handlers.ddp.broadcast_buffers = args.ddp_broadcast_buffers;
  if (args.ddp_bucket_cap_mb) handlers.ddp.bucket_cap_mb = *args.ddp_bucket_cap_mb;
  return handlers;
}

void choose_determinism(const TrainingArguments& args, const torch::Device& device) {
  if (args.full_determinism) at::globalContext().setDeterministicAlgorithms(true, false);
  if (!args.tf32) return;
  if (*args.tf32 && !device.is_cuda()) {
    throw UsageError::conflict("tf32", "needs a GPU, and this run is on the CPU",
                               "leave it unset, or use bf16");
  }
  at::globalContext().setAllowTF32CuBLAS(*args.tf32);
  at::globalContext().setAllowTF32CuDNN(*args.tf32);
}

// The host's part of a step that a graph replays must be the same each time.
void require_capturable(const TrainingArguments& args, const Accelerator& accelerator) {
  if (!args.cuda_graph) return;
  if (!accelerator.device().is_cuda()) {
    throw UsageError::conflict("cuda_graph", "needs a GPU, and this run is on the CPU",
                               "leave it unset");
  }
  if (accelerator.num_processes() > 1) {
    throw UsageError::out_of_range("cuda_graph", accelerator.num_processes(), "one process",
                                   "start one process, or leave cuda_graph unset");
  }
  if (accelerator.mixed_precision() == Precision::kFp16 ||
      accelerator.options().debug.value_or(false) ||
      accelerator.gradient_accumulation_steps() > 1 ||
      args.replicate_options().in_micro_batches()) {
    throw UsageError::conflict("cuda_graph", "fp16, gradient accumulation, sums or debug is set",
                               "use bf16, and leave the others unset");
  }
}

using O = TrainerOptions;

bool has_optimizer(const O& o) { return o.optimizers.optimizer != nullptr; }

constexpr Rule<O> kRules[] = {
    {"Trainer", [](const O& o) { return bool(o.model) == bool(o.model_init); },
     "expected one of model and model_init, got both or none", "set either model or model_init"},
    {"Trainer", [](const O& o) { return has_optimizer(o) && (!o.model || o.optimizer_init); },
     "optimizers and optimizer_init, or optimizers and model_init",
     "an optimizer in optimizers needs a model, and excludes optimizer_init"},
    {"Trainer",
     [](const O& o) { return o.optimizers.lr_scheduler != nullptr && !has_optimizer(o); },
     "expected the optimizer of its lr_scheduler, not set", "set both in optimizers"},
    {"eval_strategy",
     [](const O& o) { return o.args.eval_strategy != IntervalStrategy::kNo && !o.eval_dataset; },
     "expected an eval_dataset, not set", "give the Trainer one, or set eval_strategy to no"},
};

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Inputs without(const Inputs& inputs, const std::vector<std::string>& names) {
  Inputs rest;
  for (const auto& [name, tensor] : inputs) {
    if (!contains(names, name)) rest.set(name, tensor);
  }
  return rest;
}

}  // namespace

Inputs default_data_collator(const Batch& batch) {
  Inputs inputs = batch.inputs.size() == 1 ? Inputs(batch.inputs.only()) : batch.inputs;
  if (!batch.targets.defined()) return inputs;
  if (inputs.contains("labels")) {
    throw UsageError::conflict("default_data_collator",
                               "the batch has targets and an input called labels",
                               "rename the input, or set data_collator");
  }
  inputs.set("labels", batch.targets);
  return inputs;
}

Metrics accuracy(const EvalPrediction& prediction) {
  const auto right = prediction.predictions.argmax(-1).eq(prediction.label_ids.only());
  return {{"accuracy", right.to(torch::kFloat64).mean().item<double>()}};
}

Trainer::Trainer(TrainerOptions options)
    : options_(checked(std::move(options))),
      accelerator_(accelerator_options(options_.accelerator, args_), accelerator_handlers(args_)) {
  // As the environment and the configuration file decide too: what a checkpoint keeps, and a resume
  // compares.
  options_.args.gradient_accumulation_steps = accelerator_.gradient_accumulation_steps();
  options_.args.fp16 = accelerator_.mixed_precision() == Precision::kFp16;
  options_.args.bf16 = accelerator_.mixed_precision() == Precision::kBf16;
  set_seed(args_.seed);  // before the weights are drawn
  model_ = options_.model ? options_.model : options_.model_init();
  choose_determinism(args_, accelerator_.device());
  require_capturable(args_, accelerator_);
  for (const auto& warning : warnings_) accelerator_.log().info(warning);
  accelerator_.register_for_checkpointing(state_, "trainer_state.json");
  accelerator_.register_for_checkpointing(arguments_file_, "training_args.json");
  state_.is_local_process_zero = accelerator_.is_local_main_process();
  state_.is_world_process_zero = accelerator_.is_main_process();
  add_default_callbacks();
  for (const auto& callback : options_.callbacks) callbacks_.add(callback);
  options_.callbacks.clear();
  call(&TrainerCallback::on_init_end);
}

TrainerOptions Trainer::checked(TrainerOptions options) {
  warnings_ = resolve(options.args);
  require_rules(kRules, options);
  if (!options.data_collator) options.data_collator = default_data_collator;
  return options;
}

void Trainer::add_default_callbacks() {
  callbacks_.add(std::make_shared<DefaultFlowCallback>());
  if (accelerator_.options().quiet) return;
  if (args_.disable_tqdm) {
    callbacks_.add(std::make_shared<PrinterCallback>());
  } else {
    callbacks_.add(std::make_shared<ProgressCallback>());
  }
  callbacks_.add(std::make_shared<TableCallback>());
}

TrainerEvent Trainer::event() {
  return {.args = args_,
          .state = state_,
          .control = control_,
          .accelerator = accelerator_,
          .model = prepared_model_.get(),
          .optimizer = optimizer_ == nullptr ? nullptr : &optimizer_->optimizer(),
          .lr_scheduler = scheduler_ == nullptr ? nullptr : &scheduler_->scheduler(),
          .train_dataloader = train_loader_.get(),
          .eval_dataloader = eval_loader_.get()};
}

void Trainer::call(TrainerEventHandler handler) {
  auto now = event();
  callbacks_.call(handler, now);
}

void Trainer::call(TrainerEventHandler handler, const Batch& batch, const torch::Tensor& loss) {
  auto now = event();
  now.batch = &batch;
  now.loss = &loss;
  callbacks_.call(handler, now);
}

DataLoader Trainer::get_train_dataloader() {
  return DataLoader(options_.train_dataset, {.batch_size = args_.per_device_train_batch_size,
                                             .shuffle = true,
                                             .seed = args_.data_seed.value_or(args_.seed),
                                             .drop_last = args_.dataloader_drop_last,
                                             .num_workers = args_.dataloader_num_workers,
                                             .pin_memory = args_.dataloader_pin_memory,
                                             .transform = options_.train_transform});
}

DataLoader Trainer::get_eval_dataloader(std::shared_ptr<const Dataset> dataset) {
  return sequential_loader(std::move(dataset));
}

DataLoader Trainer::get_test_dataloader(std::shared_ptr<const Dataset> dataset) {
  return sequential_loader(std::move(dataset));
}

DataLoader Trainer::sequential_loader(std::shared_ptr<const Dataset> dataset) const {
  return DataLoader(std::move(dataset), {.batch_size = args_.per_device_eval_batch_size,
                                         .num_workers = args_.dataloader_num_workers,
                                         .pin_memory = args_.dataloader_pin_memory});
}

std::unique_ptr<torch::optim::Optimizer> Trainer::create_optimizer() {
  const auto& optimizer_init = options_.optimizer_init;
  return optimizer_init ? optimizer_init(*model_) : make_optimizer(args_, *model_);
}

std::unique_ptr<LrScheduler> Trainer::create_scheduler(torch::optim::Optimizer& optimizer,
                                                       std::int64_t num_training_steps) {
  return make_scheduler(args_, optimizer, num_training_steps);
}

LossOutput Trainer::compute_loss(Model& model, const Inputs& inputs,
                                 const NumItems& num_items_in_batch) {
  constexpr std::int64_t kIgnoreIndex = -100;
  const auto& names = args_.label_names;
  if (names.empty()) {
    throw UsageError::missing("label_names", "the name of the labels for the default loss",
                              "set label_names, or override compute_loss");
  }
  const auto& labels = inputs.at(contains(names, "labels") ? "labels" : names.front());
  const auto outputs = model.forward(without(inputs, names));
  const auto& loss = options_.compute_loss_func;
  if (loss) return {loss(outputs, labels, num_items_in_batch), outputs};
  const auto sum = [&](const torch::Tensor& output, const torch::Tensor& target) {
    const auto total = torch::cross_entropy_loss(output, target, /*weight=*/{}, at::Reduction::Sum,
                                                 kIgnoreIndex, args_.label_smoothing_factor);
    if (output.dim() <= 2) return total;  // [N, classes]
    return total / static_cast<double>(c10::multiply_integers(output.sizes().slice(2)));
  };
  return {num_items_in_batch.mean(sum, outputs, labels), outputs};
}

torch::Tensor Trainer::training_step(Model& model, const Inputs& inputs,
                                     const NumItems& num_items_in_batch) {
  const auto loss = compute_loss(model, inputs, num_items_in_batch).loss;
  const auto& names = args_.label_names;
  loss_needs_labels_ =
      std::ranges::any_of(names, [&](const std::string& name) { return inputs.contains(name); });
  accelerator_.backward(loss);
  return loss.detach();
}

Prediction Trainer::prediction_step(Model& model, const Inputs& inputs, bool prediction_loss_only) {
  const auto& names = args_.label_names;
  const bool has_labels =
      !names.empty() && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
        return inputs.contains(name) && inputs.at(name).defined();
      });
  Inputs labels;
  LossOutput made;
  if (has_labels) {
    for (const auto& name : names) labels.set(name, inputs.at(name));
  }
  if (has_labels || !loss_needs_labels_) {
    made = compute_loss(model, inputs, eval_items_.value_or(NumItems{.global = inputs.rows()}));
  } else {
    made.outputs = model.forward(without(inputs, names));
  }
  if (prediction_loss_only) return {.loss = made.loss, .outputs = {}, .labels = {}};
  return {.loss = made.loss, .outputs = made.outputs, .labels = labels};
}

Metrics Trainer::compute_metrics(const EvalPrediction& prediction) {
  return options_.compute_metrics ? options_.compute_metrics(prediction) : Metrics();
}

}  // namespace ladder
