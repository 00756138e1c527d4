// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/cuda.h>
#include <torch/utils.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "ladder/core/clock.h"
#include "ladder/core/device.h"
#include "ladder/core/error.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/optim/reduce_lr_on_plateau.h"
#include "ladder/trainer/trainer.h"

namespace ladder {
namespace {

void synchronize(const torch::Device& device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

// Appends rows to one tensor in host memory that is allocated first: small tensors that stay alive
// between the activations of the batches would fragment the memory. From a GPU the rows arrive
// later: read them after a synchronisation with it.
class Rows {
 public:
  // `expected`: rows to allocate; more are possible.
  void add(const torch::Tensor& part, std::int64_t expected) {
    const std::int64_t end = count_ + part.size(0);
    if (!rows_.defined() || end > rows_.size(0)) grow(part, std::max(end, expected));
    rows_.narrow(0, count_, part.size(0)).copy_(part, /*non_blocking=*/part.is_cuda());
    count_ = end;
  }
  bool empty() const { return !rows_.defined(); }
  torch::Tensor all() const { return empty() ? rows_ : rows_.narrow(0, 0, count_); }

 private:
  void grow(const torch::Tensor& part, std::int64_t size) {
    auto sizes = part.sizes().vec();
    sizes[0] = size;
    const auto before = all();
    rows_ = torch::empty(sizes, part.options().device(torch::kCPU).pinned_memory(part.is_cuda()));
    if (!before.defined()) return;
    synchronize(part.device());
    rows_.narrow(0, 0, count_).copy_(before);
  }

  torch::Tensor rows_;
  std::int64_t count_ = 0;
};

}  // namespace

// The rows of all processes, without repetitions, in host memory, where metrics read them.
struct Trainer::Gathered {
  std::int64_t expected = 0;  // samples
  std::int64_t samples = 0;   // so far
  Rows losses;                // float64: each sample has the mean loss of its batch
  Shares shares;  // in their place in micro-batches; the weight is the number of samples
  Rows predictions;
  nlohmann::ordered_map<std::string, Rows> labels;  // by label name
};

void Trainer::use_eval_loader(const DataLoader& loader) {
  eval_loader_ = std::make_unique<AcceleratedDataLoader>(accelerator_.prepare_eval_loader(
      args_.fast_dev_run ? limit_batches(loader, accelerator_.num_processes()) : loader));
}

std::shared_ptr<const Dataset> Trainer::dataset_or_default(std::shared_ptr<const Dataset> dataset,
                                                           const char* function) const {
  if (dataset == nullptr) dataset = options_.eval_dataset;
  if (dataset != nullptr) return dataset;
  throw UsageError::missing(function, "a dataset",
                            "pass one, or set eval_dataset of TrainerOptions");
}

Metrics Trainer::evaluate(std::shared_ptr<const Dataset> dataset,
                          const std::string& metric_key_prefix) {
  use_eval_loader(get_eval_dataloader(dataset_or_default(std::move(dataset), "evaluate")));
  auto output = evaluation_loop("Evaluation", metric_key_prefix);
  log(output.metrics);
  control_.should_evaluate = false;
  call(&TrainerCallback::on_evaluate, output);
  return output.metrics;
}

PredictionOutput Trainer::predict(std::shared_ptr<const Dataset> dataset,
                                  const std::string& metric_key_prefix) {
  use_eval_loader(get_test_dataloader(dataset_or_default(std::move(dataset), "predict")));
  auto output = evaluation_loop("Prediction", metric_key_prefix);
  call(&TrainerCallback::on_predict, output);
  return output;
}

void Trainer::call(TrainerEventHandler handler, const PredictionOutput& output) {
  auto now = event();
  now.metrics = &output.metrics;
  now.num_samples = output.num_samples;
  callbacks_.call(handler, now);
}

PredictionOutput Trainer::evaluation_loop(const std::string& description,
                                          const std::string& prefix) {
  const double started = steady_seconds();
  if (prepared_model_ == nullptr) {
    prepare_model();
    model_preparation_time_ = steady_seconds() - started;
  }
  const auto& loader = *eval_loader_;
  print_lines(
      evaluation_banner(description, loader.dataset().size(), args_.per_device_eval_batch_size));

  const torch::NoGradGuard no_grad;
  Gathered gathered{.expected = loader.shard().batch_sampler()->whole_size()};
  {
    const EvalGuard eval(*prepared_model_);
    for (const Batch& batch : loader) gather_step(batch, gathered);
  }
  synchronize(accelerator_.device());
  require_each_sample_once({.seen = gathered.samples}, gathered.expected);

  PredictionOutput output = {.predictions = gathered.predictions.all(),
                             .label_ids = {},
                             .metrics = {},
                             .num_samples = gathered.samples};
  for (const auto& [name, rows] : gathered.labels) output.label_ids.set(name, rows.all());
  output.metrics = metrics_of(gathered, output, prefix);
  const double seconds = steady_seconds() - started;
  const auto speed = speed_metrics(prefix, seconds, static_cast<double>(output.num_samples),
                                   static_cast<double>(loader.size()));
  for (const auto& [name, value] : speed) output.metrics[name] = value;
  return output;
}

void Trainer::gather_step(const Batch& batch, Gathered& gathered) {
  if (batch.micro_batch > 0) eval_items_ = batch.num_items();
  const auto step =
      prediction_step(*prepared_model_, options_.data_collator(batch), args_.prediction_loss_only);
  const auto gather = [&](const torch::Tensor& part, Rows& rows) {
    rows.add(accelerator_.gather_for_metrics(part), gathered.expected);
  };
  const auto counted = batch.targets.defined()
                           ? batch.targets
                           : send_to_device(batch.indices, accelerator_.device());
  gathered.samples += accelerator_.gather_for_metrics(counted).size(0);
  if (step.loss.defined() && eval_items_) {
    gathered.shares.emplace_back(step.loss.to(torch::kFloat64), batch.global_size);
  } else if (step.loss.defined()) {
    gather(step.loss.to(torch::kFloat64).expand({batch.size()}).contiguous(), gathered.losses);
  }
  if (step.outputs.defined()) {
    const auto& preprocess = options_.preprocess_logits_for_metrics;
    gather(preprocess ? preprocess(step.outputs, step.labels) : step.outputs, gathered.predictions);
  }
  for (const auto& [name, tensor] : step.labels) gather(tensor, gathered.labels[name]);
  auto now = event();
  now.batch = &batch;
  callbacks_.call(&TrainerCallback::on_prediction_step, now);
}

// In the order of transformers: loss, preparation time, then the names of compute_metrics.
Metrics Trainer::metrics_of(const Gathered& gathered, const PredictionOutput& output,
                            const std::string& prefix) {
  Metrics metrics;
  const auto start = prefix + "_";
  if (!gathered.losses.empty()) {
    metrics[start + "loss"] = gathered.losses.all().mean().item<double>();
  } else if (!gathered.shares.empty()) {
    const auto means = means_of(gathered.shares);
    double sum = 0.0;
    for (std::size_t i = 0; i < means.size(); ++i) sum += means[i] * gathered.shares[i].second;
    metrics[start + "loss"] = sum / static_cast<double>(gathered.samples);
  }
  const bool has_loss = !gathered.losses.empty() || !gathered.shares.empty();
  if (!has_loss && !args_.label_names.empty() && accelerator_.is_main_process()) {
    accelerator_.log().warn(
        fmt::format("no {}loss: the inputs have no {}", start, fmt::join(args_.label_names, ", ")));
  }
  if (model_preparation_time_) metrics[start + "model_preparation_time"] = *model_preparation_time_;
  if (!output.predictions.defined() || output.label_ids.empty()) return metrics;
  for (const auto& [name, value] : compute_metrics({output.predictions, output.label_ids})) {
    metrics[name.starts_with(start) ? name : start + name] = value;
  }
  return metrics;
}

// With `choose`, the metrics also update the best model and a ReduceLROnPlateau.
void Trainer::evaluate_in_training(bool choose) {
  const auto metrics = evaluate();
  if (!choose) return;
  auto* const plateau = dynamic_cast<ReduceLROnPlateau*>(&scheduler_->scheduler());
  if (plateau != nullptr) plateau->step(required_metric(metrics, args_));
  const bool is_best = is_new_best(metrics);
  if (args_.save_strategy == SaveStrategy::kBest) control_.should_save = is_best;
}

}  // namespace ladder
