// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/trainer.h"

#include <ATen/Context.h>
#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/trainer/optimizer_factory.h"
#include "ladder/trainer/progress_callback.h"

namespace ladder {
namespace {

TrainingArguments resolved(TrainingArguments args, std::vector<std::string>& notes) {
  notes = resolve(args);
  return args;
}

// What args say, over what the program said of the machine.
AcceleratorOptions accelerator_options(AcceleratorOptions options, const TrainingArguments& args) {
  if (args.fp16) options.mixed_precision = Precision::kFp16;
  if (args.bf16) options.mixed_precision = Precision::kBf16;
  options.gradient_accumulation.num_steps = args.gradient_accumulation_steps;
  options.cpu = options.cpu || args.use_cpu;
  options.data_loader = {.mode = args.accelerator_config.mode(),
                         .even_batches = args.accelerator_config.even_batches,
                         .dispatch_batches = args.accelerator_config.dispatch_batches};
  options.project.project_dir = args.output_dir;
  if (!args.output_dir.empty()) options.project.logging_dir = args.output_dir + "/runs";
  options.log_with = args.report_to;
  options.scheduler_steps_per_call = 1;  // a schedule counts steps of the optimizer
  if (!args.ddp_backend.empty()) options.process_group.backend = args.ddp_backend;
  options.process_group.timeout = std::chrono::seconds(args.ddp_timeout);
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
    throw UsageError::conflict("tf32", "it needs a GPU, and this run is on the CPU",
                               "leave it out, or use bf16");
  }
  at::globalContext().setAllowTF32CuBLAS(*args.tf32);
  at::globalContext().setAllowTF32CuDNN(*args.tf32);
}

// The arguments of the model: everything but the labels.
Inputs model_inputs(const Inputs& inputs, const std::vector<std::string>& label_names) {
  Inputs arguments;
  for (const auto& [name, tensor] : inputs) {
    const bool is_label =
        std::find(label_names.begin(), label_names.end(), name) != label_names.end();
    if (!is_label) arguments.set(name, tensor);
  }
  return arguments;
}

}  // namespace

Inputs default_data_collator(const Batch& batch) {
  Inputs inputs = batch.inputs.size() == 1 ? Inputs(batch.inputs.only()) : batch.inputs;
  if (!batch.targets.defined()) return inputs;
  if (inputs.contains("labels")) {
    throw UsageError::conflict("default_data_collator",
                               "the batch has targets, and an input called labels",
                               "give the input another name, or a data_collator of your own");
  }
  inputs.set("labels", batch.targets);
  return inputs;
}

Metrics accuracy(const EvalPrediction& prediction) {
  const auto right = prediction.predictions.argmax(-1).eq(prediction.label_ids);
  return {{"accuracy", right.to(torch::kFloat64).mean().item<double>()}};
}

Trainer::Trainer(TrainerOptions options)
    : args_(resolved(options.args, notes_)),
      accelerator_(accelerator_options(options.accelerator, args_), accelerator_handlers(args_)),
      model_(require_model(options)),
      train_dataset_(std::move(options.train_dataset)),
      eval_dataset_(std::move(options.eval_dataset)),
      collate_(std::move(options.data_collator)),
      loss_function_(std::move(options.compute_loss_func)),
      metrics_function_(std::move(options.compute_metrics)),
      optimizer_init_(std::move(options.optimizer_init)),
      optimizers_(std::move(options.optimizers)),
      train_transform_(std::move(options.train_transform)) {
  choose_determinism(args_, accelerator_.device());
  for (const auto& note : notes_) accelerator_.log().info(note);
  accelerator_.register_for_checkpointing(state_, "trainer_state.json");
  accelerator_.register_for_checkpointing(arguments_file_, "training_args.json");
  state_.is_local_process_zero = accelerator_.is_local_main_process();
  state_.is_world_process_zero = accelerator_.is_main_process();
  add_default_callbacks();
  for (auto& callback : options.callbacks) callbacks_.add(std::move(callback));
  call(&TrainerCallback::on_init_end);
}

// The seed is set before the weights are drawn.
std::shared_ptr<Model> Trainer::require_model(const TrainerOptions& options) const {
  require_possible(options);
  set_seed(args_.seed);
  return options.model != nullptr ? options.model : options.model_init();
}

void Trainer::require_possible(const TrainerOptions& options) const {
  const bool has_model = options.model != nullptr;
  if (has_model == static_cast<bool>(options.model_init)) {
    throw UsageError::conflict("Trainer", has_model ? "model and model_init" : "no model",
                               "give a model, or model_init, which makes one");
  }
  if (!has_model && options.optimizers.optimizer != nullptr) {
    throw UsageError::conflict("Trainer", "an optimizer for a model that is not made yet",
                               "override create_optimizer, or give a model");
  }
  if (options.optimizers.lr_scheduler != nullptr && options.optimizers.optimizer == nullptr) {
    throw UsageError::missing("Trainer", "the optimizer of its lr_scheduler", "give both");
  }
  if (args_.eval_strategy != IntervalStrategy::kNo && options.eval_dataset == nullptr) {
    throw UsageError::missing("eval_strategy", "an eval_dataset",
                              "give the Trainer one, or set eval_strategy to no");
  }
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

void Trainer::add_callback(std::shared_ptr<TrainerCallback> callback) {
  callbacks_.add(std::move(callback));
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
  const auto batch_size = args_.per_device_train_batch_size;
  DataLoaderOptions options = {.batch_size = batch_size,
                               .shuffle = true,
                               .seed = args_.data_seed.value_or(args_.seed),
                               .drop_last = args_.dataloader_drop_last,
                               .num_workers = args_.dataloader_num_workers,
                               .pin_memory = args_.dataloader_pin_memory,
                               .transform = train_transform_};
  return DataLoader(train_dataset_, std::move(options));
}

DataLoader Trainer::get_eval_dataloader(std::shared_ptr<const Dataset> dataset) {
  return DataLoader(std::move(dataset), {.batch_size = args_.per_device_eval_batch_size,
                                         .num_workers = args_.dataloader_num_workers,
                                         .pin_memory = args_.dataloader_pin_memory});
}

std::unique_ptr<torch::optim::Optimizer> Trainer::create_optimizer() {
  return optimizer_init_ ? optimizer_init_(*model_) : make_optimizer(args_, *model_);
}

std::unique_ptr<LrScheduler> Trainer::create_scheduler(torch::optim::Optimizer& optimizer,
                                                       std::int64_t num_training_steps) {
  return make_scheduler(args_, optimizer, num_training_steps);
}

LossOutput Trainer::compute_loss(Model& model, const Inputs& inputs,
                                 const NumItems& num_items_in_batch) {
  constexpr std::int64_t kIgnoreIndex = -100;
  const auto& labels = inputs.at(args_.label_names.front());
  const auto outputs = model.forward(model_inputs(inputs, args_.label_names));
  if (loss_function_) return {loss_function_(outputs, labels, num_items_in_batch), outputs};
  const auto sum = torch::cross_entropy_loss(outputs, labels, /*weight=*/{}, at::Reduction::Sum,
                                             kIgnoreIndex, args_.label_smoothing_factor);
  return {num_items_in_batch.mean(sum), outputs};
}

torch::Tensor Trainer::training_step(Model& model, const Inputs& inputs,
                                     const NumItems& num_items_in_batch) {
  const auto loss = compute_loss(model, inputs, num_items_in_batch).loss;
  accelerator_.backward(loss);
  return loss.detach();
}

Prediction Trainer::prediction_step(Model& model, const Inputs& inputs, bool prediction_loss_only) {
  const auto is_there = [&](const std::string& name) { return inputs.contains(name); };
  if (!std::all_of(args_.label_names.begin(), args_.label_names.end(), is_there)) {
    return {.loss = {},
            .outputs = model.forward(model_inputs(inputs, args_.label_names)),
            .labels = {}};
  }
  const auto& labels = inputs.at(args_.label_names.front());
  const auto [loss, outputs] = compute_loss(model, inputs, {.global = labels.size(0)});
  if (prediction_loss_only) return {.loss = loss, .outputs = {}, .labels = {}};
  return {.loss = loss, .outputs = outputs, .labels = labels};
}

Metrics Trainer::compute_metrics(const EvalPrediction& prediction) {
  return metrics_function_ ? metrics_function_(prediction) : Metrics();
}

}  // namespace ladder
