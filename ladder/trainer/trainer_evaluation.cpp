// SPDX-License-Identifier: Apache-2.0
// Trainer::evaluate and Trainer::predict.
#include <fmt/core.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/progress_bar.h"
#include "ladder/data/limited_batch_sampler.h"
#include "ladder/optim/reduce_lr_on_plateau.h"
#include "ladder/train/evaluation.h"
#include "ladder/trainer/trainer.h"

namespace ladder {

namespace {

// Rows that come in parts, in one tensor from the first on: small parts that live among the large
// activations of each batch would keep their memory from being used again.
class Rows {
 public:
  // `expected`: how many there will be; more are taken too.
  void add(const torch::Tensor& part, std::int64_t expected) {
    const std::int64_t end = count_ + part.size(0);
    if (!rows_.defined() || end > rows_.size(0)) grow(part, std::max(end, expected));
    rows_.narrow(0, count_, part.size(0)).copy_(part);
    count_ = end;
  }
  bool empty() const { return !rows_.defined(); }
  torch::Tensor all() const { return empty() ? rows_ : rows_.narrow(0, 0, count_); }

 private:
  void grow(const torch::Tensor& part, std::int64_t size) {
    auto sizes = part.sizes().vec();
    sizes[0] = size;
    const auto before = all();
    rows_ = torch::empty(sizes, part.options());
    if (before.defined()) rows_.narrow(0, 0, count_).copy_(before);
  }

  torch::Tensor rows_;
  std::int64_t count_ = 0;
};

}  // namespace

// What an evaluation has seen: rows of all processes, repetitions left out.
struct Trainer::Gathered {
  bool loss_only = false;
  std::int64_t expected = 0;  // samples
  Rows losses;                // float64, each sample's that of its batch's mean
  Rows predictions;
  Rows labels;
  std::int64_t samples = 0;
};

AcceleratedDataLoader Trainer::eval_loader(std::shared_ptr<const Dataset> dataset) {
  auto loader = get_eval_dataloader(std::move(dataset));
  return accelerator_.prepare_eval_loader(
      args_.fast_dev_run ? first_batches(loader, accelerator_.num_processes()) : loader);
}

// eval_loader_ over `dataset`, by default eval_dataset.
void Trainer::choose_eval_loader(std::shared_ptr<const Dataset> dataset, const char* function) {
  if (dataset == nullptr) dataset = eval_dataset_;
  if (dataset == nullptr) {
    throw UsageError::missing(function, "a dataset", "give it one, or the Trainer an eval_dataset");
  }
  if (eval_loader_ != nullptr && &eval_loader_->dataset() == dataset.get()) return;
  eval_loader_ = std::make_unique<AcceleratedDataLoader>(eval_loader(std::move(dataset)));
}

Metrics Trainer::evaluate(std::shared_ptr<const Dataset> dataset,
                          const std::string& metric_key_prefix) {
  choose_eval_loader(std::move(dataset), "evaluate");
  auto output = evaluation_loop(*eval_loader_, "Evaluation", metric_key_prefix);
  log(output.metrics);
  control_.should_evaluate = false;
  call(&TrainerCallback::on_evaluate, output);
  return output.metrics;
}

PredictionOutput Trainer::predict(std::shared_ptr<const Dataset> dataset,
                                  const std::string& metric_key_prefix) {
  choose_eval_loader(std::move(dataset), "predict");
  auto output = evaluation_loop(*eval_loader_, "Prediction", metric_key_prefix);
  call(&TrainerCallback::on_predict, output);
  return output;
}

void Trainer::call(TrainerEventHandler handler, const PredictionOutput& output) {
  auto now = event();
  now.metrics = &output.metrics;
  now.num_samples = output.num_samples;
  callbacks_.call(handler, now);
}

PredictionOutput Trainer::evaluation_loop(const AcceleratedDataLoader& loader,
                                          const std::string& description,
                                          const std::string& prefix) {
  const double started = steady_seconds();
  if (prepared_model_ == nullptr) {
    prepare_model();
    model_preparation_time_ = steady_seconds() - started;
  }
  const auto examples = loader.dataset().size();
  for (const auto& line :
       evaluation_banner(description, examples, args_.per_device_eval_batch_size)) {
    say(line);
  }

  const torch::NoGradGuard no_grad;
  const bool was_training = prepared_model_->is_training();
  prepared_model_->eval();
  Gathered gathered{.loss_only = args_.prediction_loss_only,
                    .expected = loader.shard().batch_sampler()->whole_size()};
  for (const Batch& batch : loader) gather_step(batch, gathered);
  prepared_model_->train(was_training);
  require_each_sample_once({.seen = gathered.samples}, gathered.expected);

  PredictionOutput output = {.predictions = gathered.predictions.all(),
                             .label_ids = gathered.labels.all(),
                             .metrics = {},
                             .num_samples = gathered.samples};
  output.metrics = metrics_of(gathered, output, prefix);
  const double seconds = steady_seconds() - started;
  for (const auto& [name, value] :
       speed_metrics(prefix, seconds, static_cast<double>(output.num_samples),
                     static_cast<double>(loader.size()))) {
    output.metrics[name] = value;
  }
  return output;
}

void Trainer::gather_step(const Batch& batch, Gathered& gathered) {
  const auto inputs = collate_(batch);
  const auto [loss, outputs, labels] =
      prediction_step(*prepared_model_, inputs, gathered.loss_only);
  const auto counted =
      batch.targets.defined() ? batch.targets : batch.indices.to(accelerator_.device());
  gathered.samples += accelerator_.gather_for_metrics(counted).size(0);
  if (loss.defined()) {
    const auto each = loss.to(torch::kFloat64).expand({batch.size()}).contiguous();
    gathered.losses.add(accelerator_.gather_for_metrics(each), gathered.expected);
  }
  const auto add = [&](const torch::Tensor& part, Rows& target) {
    if (part.defined()) target.add(accelerator_.gather_for_metrics(part), gathered.expected);
  };
  add(outputs, gathered.predictions);
  add(labels, gathered.labels);
  auto now = event();
  now.batch = &batch;
  callbacks_.call(&TrainerCallback::on_prediction_step, now);
}

// In the order of the Trainer of transformers: the loss, the time, and what compute_metrics gives.
Metrics Trainer::metrics_of(const Gathered& gathered, const PredictionOutput& output,
                            const std::string& prefix) {
  Metrics metrics;
  if (!gathered.losses.empty()) {
    metrics[prefix + "_loss"] = gathered.losses.all().mean().item<double>();
  }
  if (model_preparation_time_) {
    metrics[prefix + "_model_preparation_time"] = *model_preparation_time_;
  }
  if (!output.predictions.defined() || !output.label_ids.defined()) return metrics;
  const auto start = prefix + "_";
  for (const auto& [name, value] : compute_metrics({output.predictions, output.label_ids})) {
    metrics[name.starts_with(start) ? name : start + name] = value;
  }
  return metrics;
}

// Afterwards: is it the best so far, and a schedule that goes by it takes note.
void Trainer::evaluate_in_training(bool choose) {
  const auto metrics = evaluate();
  if (!choose) return;
  auto* const plateau = dynamic_cast<ReduceLROnPlateau*>(&scheduler_->scheduler());
  if (plateau != nullptr) plateau->step(required_metric(metrics, args_));
  const bool is_best = is_new_best(metrics);
  if (args_.save_strategy == SaveStrategy::kBest) control_.should_save = is_best;
}

}  // namespace ladder
