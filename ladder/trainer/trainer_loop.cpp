// SPDX-License-Identifier: Apache-2.0
// Trainer::train: the loop that stage 5 writes out.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <utility>

#include "ladder/armour/stop_signal.h"
#include "ladder/core/clock.h"
#include "ladder/core/error.h"
#include "ladder/core/text.h"
#include "ladder/io/json.h"
#include "ladder/launch/rank_status.h"
#include "ladder/launch/signals.h"
#include "ladder/nn/random_scope.h"
#include "ladder/optim/reduce_lr_on_plateau.h"
#include "ladder/trainer/trainer.h"

namespace ladder {
namespace {

std::int64_t trainable_parameters(const Model& model) {
  std::int64_t count = 0;
  for (const auto& parameter : unique_tensors(model.parameters())) {
    if (parameter.requires_grad()) count += parameter.numel();
  }
  return count;
}

// "train/loss", "eval/loss": the names that transformers logs to its trackers.
std::string tracker_name(const std::string& name) {
  for (const char* split : {"eval", "test"}) {
    const std::string prefix = std::string(split) + "_";
    if (name.starts_with(prefix)) return fmt::format("{}/{}", split, name.substr(prefix.size()));
  }
  return "train/" + name;
}

}  // namespace

TrainOutput Trainer::train(const std::string& resume_from_checkpoint) {
  if (options_.train_dataset == nullptr) {
    throw UsageError::missing("train", "a train_dataset", "set train_dataset of TrainerOptions");
  }
  const double started = steady_seconds();
  const auto checkpoint = checkpoint_to_resume(resume_from_checkpoint);
  prepare_training();
  require_own_output_dir(checkpoint, resume_from_checkpoint == "auto");
  if (!checkpoint.empty()) resume(checkpoint);
  first_step_ = logged_step_ = state_.global_step;
  loss_ = torch::zeros({}, torch::dtype(torch::kFloat64).device(accelerator_.device()));
  shares_.clear();
  logged_loss_ = 0.0;
  print_lines(plan_.banner());
  if (!checkpoint.empty()) {
    print_lines(plan_.resume_lines(state_.global_step, args_.ignore_data_skip));
    warn_of_other_steps();
  }
  start_trackers();

  control_.should_training_stop = false;
  call(&TrainerCallback::on_train_begin);
  if (args_.eval_on_start) evaluate_in_training(/*choose=*/false);
  run_epochs();
  return finish_training(steady_seconds() - started);
}

void Trainer::run_epochs() {
  StepObservers observers;
  for (const auto& observer : observers_) observers.add(observer);
  observers.add(std::make_shared<StopObserver>(accelerator_.process_group()));
  bool saved = false;
  for (auto epoch = next_epoch(); epoch < plan_.num_train_epochs; ++epoch) {
    if (state_.global_step >= plan_.max_steps) break;  // resumed after its last step
    Verdict verdict;
    saved = run_epoch(epoch, observers, verdict);
    stop_after(verdict ? verdict : observers.pause(), saved);
    if (control_.should_training_stop) break;
  }
  stop_after(observers.end(), saved);
}

// Behind the last batch of an epoch it is the next one. Steps do not tell: callbacks end epochs.
std::int64_t Trainer::next_epoch() const {
  return train_loader_->epoch() + train_loader_->first_batch() / train_loader_->size();
}

// After epochs that a callback has ended, steps and epochs disagree.
void Trainer::warn_of_other_steps() const {
  const auto batch = train_loader_->first_batch() % train_loader_->size();
  const auto steps = next_epoch() * plan_.updates + ceil_div(batch, plan_.sizes.accumulation_steps);
  if (steps == state_.global_step || args_.ignore_data_skip) return;
  accelerator_.log().warn(fmt::format(
      "resume: the checkpoint has {} steps before this point of epoch {}, this run would "
      "have {}: it ends after step {} or epoch {}, whichever is first; hint: max_steps "
      "sets another number of steps",
      state_.global_step, next_epoch() + 1, steps, plan_.max_steps, plan_.num_train_epochs));
}

// The batches per epoch that fast_dev_run and limit_train_batches allow.
DataLoader Trainer::limited(const DataLoader& loader) const {
  if (!is_limited()) return loader;
  const double limit = args_.limit_train_batches;
  const bool is_per_process = args_.accelerator_config.mode() == LoaderMode::kPerProcess;
  const std::int64_t dealt = is_per_process ? accelerator_.num_processes() : 1;
  const auto batches = static_cast<double>(ceil_div(loader.size(), dealt));
  const double asked = limit > 1.0 ? limit : batches * limit;
  const double wanted = args_.fast_dev_run ? 1.0 : asked;
  return limit_batches(loader,
                       std::max<std::int64_t>(1, static_cast<std::int64_t>(wanted)) * dealt);
}

void Trainer::prepare_model() {
  if (prepared_model_ != nullptr) return;
  prepared_model_ = accelerator_.prepare_model(model_);
}

// Runs for each training; only the optimizer's state survives from the one before.
void Trainer::prepare_training() {
  accelerator_.free_memory();
  prepared_model_.reset();
  prepare_model();
  train_loader_ = std::make_unique<AcceleratedDataLoader>(
      accelerator_.prepare(limited(get_train_dataloader())));
  if (train_loader_->size() == 0) {
    throw DataError::mismatch(
        "train_dataset", "at least one batch",
        fmt::format("none of its {} samples", train_loader_->dataset().size()),
        "make per_device_train_batch_size smaller, or set dataloader_drop_last to false");
  }
  const auto examples = is_limited() ? train_loader_->shard().batch_sampler()->whole_size()
                                     : train_loader_->dataset().size();
  plan_ = TrainingPlan(args_, {.num_examples = examples,
                               .batches = train_loader_->size(),
                               .accumulation_steps = accelerator_.gradient_accumulation_steps(),
                               .num_processes = accelerator_.num_processes(),
                               .num_parameters = trainable_parameters(*model_)});
  const TrainerState old = std::exchange(state_, {});
  state_.is_local_process_zero = old.is_local_process_zero;
  state_.is_world_process_zero = old.is_world_process_zero;
  state_.max_steps = plan_.max_steps;
  state_.num_train_epochs = plan_.num_train_epochs;
  state_.train_batch_size = args_.per_device_train_batch_size;
  state_.compute_steps(args_, plan_.max_steps);
  // Callbacks see the default loader until the first evaluation, which has its own.
  if (options_.eval_dataset != nullptr) use_eval_loader(sequential_loader(options_.eval_dataset));
  auto& optimizer = options_.optimizers.optimizer;
  if (optimizer == nullptr) optimizer = create_optimizer();
  optimizer_ = accelerator_.prepare_optimizer(optimizer);
  auto schedule = options_.optimizers.lr_scheduler;
  if (schedule == nullptr) schedule = new_schedule();
  scheduler_ = accelerator_.prepare_scheduler(schedule);
  graph_.reset();
  if (args_.cuda_graph) graph_.emplace(accelerator_.device(), optimizer_->optimizer());
}

// Starts from the optimizer's initial learning rates, also in a second training.
std::shared_ptr<LrScheduler> Trainer::new_schedule() {
  auto& optimizer = *options_.optimizers.optimizer;
  auto& groups = optimizer.param_groups();
  if (initial_rates_.empty()) {
    for (auto& group : groups) initial_rates_.push_back(group.options().get_lr());
  }
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(initial_rates_.at(i));
  return create_scheduler(optimizer, plan_.max_steps);
}

bool Trainer::run_epoch(std::int64_t epoch, StepObservers& observers, Verdict& verdict) {
  train_loader_->set_epoch(epoch);
  control_.should_epoch_stop = false;
  call(&TrainerCallback::on_epoch_begin);
  prepared_model_->train();
  const auto first = train_loader_->first_batch();
  observers.begin_epoch({.epoch = epoch + 1,
                         .epochs = plan_.num_train_epochs,
                         .batches = plan_.sizes.batches - first,
                         .steps = state_.global_step});
  std::int64_t batches = 0;
  std::int64_t samples = 0;
  bool begins_step = true;
  for (const Batch& batch : *train_loader_) {
    if (begins_step) {
      control_.should_log = control_.should_evaluate = control_.should_save = false;
      set_current_step(state_.global_step + 1);
      call(&TrainerCallback::on_step_begin);
    }
    const auto accumulation = accelerator_.accumulate(*prepared_model_);
    const auto loss = train_on(batch);
    begins_step = accelerator_.sync_gradients();
    ++batches;
    samples += batch.global_size;
    const StepEvent event{.model = *prepared_model_,
                          .batch = batch,
                          .loss = loss,
                          .step = state_.global_step + 1,
                          .updated = begins_step,
                          .batches = batches,
                          .samples = samples};
    verdict = end_batch(event, epoch, first + batches, observers);
    if (control_.should_epoch_stop) train_loader_->end_epoch();
    if (control_.should_epoch_stop || control_.should_training_stop) break;
  }
  if (!begins_step) accelerator_.drop_window();
  observers.end_epoch();
  call(&TrainerCallback::on_epoch_end);
  return log_save_evaluate() && !args_.save_only_model;
}

Verdict Trainer::end_batch(const StepEvent& event, std::int64_t epoch, std::int64_t done,
                           StepObservers& observers) {
  if (!event.updated) {
    observers.step(event);
    call(&TrainerCallback::on_substep_end, event.batch, event.loss);
    return {};
  }
  auto verdict = optimizer_step(event, observers);
  state_.epoch = static_cast<double>(epoch) +
                 static_cast<double>(done) / static_cast<double>(plan_.sizes.batches);
  call(&TrainerCallback::on_step_end, event.batch, event.loss);
  if (control_.should_epoch_stop) train_loader_->end_epoch();
  const bool evaluates = control_.should_evaluate;
  const bool saves = log_save_evaluate();
  if (!verdict && (evaluates || saves)) verdict = observers.pause();
  if (done < plan_.sizes.batches) stop_after(verdict, saves && !args_.save_only_model);
  return verdict;
}

// Saves a complete checkpoint if there is an output_dir, even with save_only_model, and even if
// this step has one, which may lack changes that the end of the epoch made; `saved`: it lacks none.
void Trainer::stop_after(Verdict verdict, bool saved) {
  if (!verdict) return;
  const bool can_save = !args_.output_dir.empty() && !args_.fast_dev_run;
  if (can_save && !saved) {
    save_checkpoint(/*only_model=*/false);
    call(&TrainerCallback::on_save);
  }
  const auto line = stop_line(verdict.signal, state_.global_step,
                              can_save ? checkpoint_path(state_.global_step) : "");
  throw StoppedBySignal(verdict.signal, accelerator_.is_main_process() ? line : "");
}

torch::Tensor Trainer::train_on(const Batch& batch) {
  const RandomScope random({args_.seed, batch.epoch, batch.positions});
  auto collated = batch;
  collated.inputs = options_.data_collator(batch);
  collated.targets = torch::Tensor();  // among the inputs
  const auto step = [this](const Batch& own) {
    const RandomScope random_in_step({args_.seed, own.epoch, own.positions});
    return training_step(*prepared_model_, own.inputs, own.num_items());
  };
  const auto loss = graph_ ? graph_->run(collated, step) : step(collated);
  state_.total_flos += floating_point_ops(collated.inputs);
  if (batch.micro_batch > 0) {
    shares_.emplace_back(loss.to(torch::kFloat64), accelerator_.loss_weight());
    return loss;
  }
  auto value = loss.to(torch::kFloat64).squeeze() * accelerator_.loss_weight();  // [1] is one too
  if (args_.logging_nan_inf_filter) {
    const auto steps = static_cast<double>(1 + state_.global_step - logged_step_);
    value = torch::where(value.isfinite(), value, loss_ / steps);
  }
  loss_ += value;  // on the device: no wait for a GPU
  return loss;
}

// The sum of the losses of all steps since the last call, each a mean over all processes. A
// collective.
double Trainer::take_loss() {
  if (shares_.empty()) {
    const auto sum = accelerator_.reduce(loss_, Reduction::kMean).item<double>();
    loss_.zero_();
    return sum;
  }
  const auto means = means_of(shares_);
  double sum = 0.0;
  for (std::size_t i = 0; i < means.size(); ++i) {
    const bool is_counted = std::isfinite(means[i]) || !args_.logging_nan_inf_filter;
    sum += is_counted ? means[i] * shares_[i].second
                      : sum / static_cast<double>(std::max<std::size_t>(1, i));
  }
  shares_.clear();
  return sum;
}

// The mean loss of each batch: the shares of all processes, which doubles add without rounding
// (NumItems::mean). A collective.
std::vector<double> Trainer::means_of(const Shares& shares) const {
  if (shares.empty()) return {};
  std::vector<torch::Tensor> parts;
  for (const auto& [share, weight] : shares) parts.push_back(share);
  const auto means = accelerator_.reduce(torch::stack(parts), Reduction::kSum).cpu();
  return {means.const_data_ptr<double>(), means.const_data_ptr<double>() + means.numel()};
}

Verdict Trainer::optimizer_step(const StepEvent& event, StepObservers& observers) {
  clip_gradients();
  call(&TrainerCallback::on_pre_optimizer_step, event.batch, event.loss);
  optimizer_->step();
  call(&TrainerCallback::on_optimizer_step, event.batch, event.loss);
  const auto verdict = observers.step(event);
  learning_rate_ = scheduler_->last_lr().front();
  if (dynamic_cast<ReduceLROnPlateau*>(&scheduler_->scheduler()) == nullptr) scheduler_->step();
  optimizer_->zero_grad();
  ++state_.global_step;
  return verdict;
}

// Without clipping, the norm is computed only in steps that are logged.
void Trainer::clip_gradients() {
  const auto step = state_.global_step + 1;
  const bool by_step = args_.logging_strategy == IntervalStrategy::kSteps;
  const bool by_epoch = args_.logging_strategy == IntervalStrategy::kEpoch;
  const bool is_logged = (step == 1 && args_.logging_first_step) ||
                         (by_step && is_due(step, state_.logging_steps)) ||
                         (by_epoch && (step % plan_.updates == 0 || step == plan_.max_steps));
  const bool clips = args_.max_grad_norm > 0.0;
  grad_norm_ = torch::Tensor();
  if (!clips && !is_logged) return;
  const double limit = clips ? args_.max_grad_norm : std::numeric_limits<double>::infinity();
  grad_norm_ = accelerator_.clip_grad_norm_(prepared_model_->parameters(), limit);
}

bool Trainer::log_save_evaluate() {
  if (control_.should_log && state_.global_step > logged_step_) log_progress();
  if (control_.should_evaluate) evaluate_in_training(/*choose=*/true);
  if (!control_.should_save) return false;
  if (!args_.fast_dev_run) save_checkpoint(args_.save_only_model);
  control_.should_save = false;
  call(&TrainerCallback::on_save);
  return true;
}

void Trainer::log_progress() {
  const double sum = take_loss();
  Metrics logs;
  logs["loss"] = sum / static_cast<double>(state_.global_step - logged_step_);
  if (grad_norm_.defined()) logs["grad_norm"] = grad_norm_.item<double>();
  logs["learning_rate"] = learning_rate_;
  logged_loss_ += sum;
  logged_step_ = state_.global_step;
  log(logs);
}

void Trainer::log(Metrics& logs) {
  logs["epoch"] = state_.epoch;
  state_.log_history.push_back({state_.global_step, logs});
  if (trackers_started_) {
    std::map<std::string, double> values;
    for (const auto& [name, value] : logs) values[tracker_name(name)] = value;
    accelerator_.log(values, state_.global_step);
  }
  control_.should_log = false;
  auto now = event();
  now.logs = &logs;
  callbacks_.call(&TrainerCallback::on_log, now);
}

TrainOutput Trainer::finish_training(double seconds) {
  set_current_step(0);
  logged_loss_ += take_loss();
  const auto steps = static_cast<double>(state_.global_step - first_step_);
  const double share = steps / static_cast<double>(std::max<std::int64_t>(1, plan_.max_steps));
  auto metrics = speed_metrics("train", seconds, plan_.num_train_samples * share, steps);
  metrics["total_flos"] = state_.total_flos;
  const double loss = logged_loss_ / std::max(steps, 0.001);
  metrics["train_loss"] = loss;
  log(metrics);
  if (args_.load_best_model_at_end) load_best_model();
  if (args_.save_total_limit == 1 && state_.best_model_checkpoint) {
    limit_checkpoints({*state_.best_model_checkpoint}, 1);
  }
  call(&TrainerCallback::on_train_end);
  return {.global_step = state_.global_step, .training_loss = loss, .metrics = metrics};
}

void Trainer::start_trackers() {
  if (args_.report_to.empty() || trackers_started_) return;
  const auto folder = std::filesystem::path(args_.output_dir).filename().string();
  const auto& name = args_.run_name.empty() ? folder : args_.run_name;
  auto configuration = to_json(args_);
  for (auto& value : configuration) {
    if (!value.is_number() && !value.is_boolean() && !value.is_string()) value = json_text(value);
  }
  accelerator_.init_trackers(name, configuration);
  trackers_started_ = true;
}

void Trainer::print_lines(const std::vector<std::string>& lines) const {
  const Log log({.rank = accelerator_.process_index(), .quiet = accelerator_.options().quiet});
  for (const auto& line : lines) log.info(line);
}

}  // namespace ladder
