// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/core/log.h"
#include "ladder/data/batch.h"
#include "ladder/data/data_loader.h"
#include "ladder/data/dataset.h"
#include "ladder/graph/step_graph.h"
#include "ladder/guest/adapt.h"
#include "ladder/monitor/step_observer.h"
#include "ladder/nn/model.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/trainer/metrics.h"
#include "ladder/trainer/trainer_callback.h"
#include "ladder/trainer/trainer_state.h"
#include "ladder/trainer/training_arguments.h"
#include "ladder/trainer/training_plan.h"

namespace ladder {

// Turns this process's part of a batch, which is on its device, into named tensors: the inputs of
// the model, and the labels under TrainingArguments::label_names. The part may be empty (N = 0).
//
//     .data_collator = [](const Batch& batch) -> Inputs {
//       return {{"x", batch.inputs.only().flatten(1)}, {"labels", batch.targets}};
//     }
using DataCollator = std::function<Inputs(const Batch&)>;

// The inputs of the batch under their names, a single one as "x", and its targets as "labels".
Inputs default_data_collator(const Batch& batch);

struct LossOutput {
  torch::Tensor loss;     // scalar
  torch::Tensor outputs;  // of the model, one row per sample
};

// Of one batch. Without labels there is no loss; with prediction_loss_only there is only the loss.
struct Prediction {
  torch::Tensor loss;     // scalar: mean over this process's part, in micro-batches its share of
                          // the mean over the batch of all; undefined if there is none
  torch::Tensor outputs;  // one row per sample; undefined if there are none
  Inputs labels;          // one tensor per label name, one row per sample; may be empty
};

// Of a whole data set, in its order, each sample once; the same on all processes, in host memory.
struct EvalPrediction {
  torch::Tensor predictions;
  Inputs label_ids;  // in the order of label_names: label_ids.only() for one, label_ids.at("name")
};

struct PredictionOutput {
  torch::Tensor predictions;  // in host memory; undefined with prediction_loss_only
  Inputs label_ids;           // the same; empty without labels
  Metrics metrics;
  std::int64_t num_samples = 0;
};

struct TrainOutput {
  std::int64_t global_step = 0;
  double training_loss = 0.0;  // mean over the steps of this call
  Metrics metrics;
};

// A metric "accuracy", from 0 to 1: the share of samples whose label has the highest score.
// Takes one label name; with several, UsageError.
Metrics accuracy(const EvalPrediction& prediction);

// The loss of a batch from the model's outputs; see Trainer::compute_loss.
class LossFunction
    : public std::function<torch::Tensor(const torch::Tensor& outputs, const torch::Tensor& labels,
                                         const NumItems& num_items_in_batch)> {
 public:
  // NOLINTBEGIN(google-explicit-constructor): the type of an argument
  LossFunction(std::nullptr_t = nullptr) {}
  template <typename Function>
  LossFunction(const Function& loss) {
    if constexpr (std::is_constructible_v<function, const Function&>) {
      function::operator=(loss);
    } else {
      static_assert(std::is_void_v<Function>,  // never
                    "compute_loss_func: expected torch::Tensor(const torch::Tensor& outputs, const "
                    "torch::Tensor& labels, const ladder::NumItems& num_items_in_batch)");
    }
  }
  // NOLINTEND(google-explicit-constructor)
};
using MetricsFunction = std::function<Metrics(const EvalPrediction& prediction)>;
// Reduces the outputs of one batch, for example to their argmax, before they are gathered for
// compute_metrics. Called on each process for its part, which may be empty.
using LogitsFunction =
    std::function<torch::Tensor(const torch::Tensor& logits, const Inputs& labels)>;
using OptimizerFunction =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const Model& model)>;

// An optimizer, and a schedule for it. A Trainer makes what is not set.
struct Optimizers {
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::shared_ptr<LrScheduler> lr_scheduler;
};

// The parts of a Trainer. An empty function, data set or pointer stands for the default.
struct TrainerOptions {
  ModelPointer model;                        // either this,
  std::function<ModelPointer()> model_init;  // or this: called after the seed is set
  TrainingArguments args = {};
  std::shared_ptr<const Dataset> train_dataset = nullptr;
  std::shared_ptr<const Dataset> eval_dataset = nullptr;
  DataCollator data_collator = default_data_collator;
  LossFunction compute_loss_func = nullptr;                // default: cross-entropy
  MetricsFunction compute_metrics = nullptr;               // default: no metrics but the loss
  LogitsFunction preprocess_logits_for_metrics = nullptr;  // default: the outputs as they are
  std::vector<std::shared_ptr<TrainerCallback>> callbacks;
  Optimizers optimizers = {};                  // either these,
  OptimizerFunction optimizer_init = nullptr;  // or a function that makes the optimizer
  std::shared_ptr<const Transform> train_transform = nullptr;
  AcceleratorOptions accelerator = {};  // settings that args lack: threads, config_file, quiet, ...
};

// Trains a model without a loop in the program: forward, backward, step, learning rate, logs,
// evaluations and checkpoints, on one process or on many.
//
//     TrainingArguments args;
//     args.output_dir = "basic-trainer";
//     args.eval_strategy = IntervalStrategy::kEpoch;
//     Trainer trainer({.model = model, .args = args, .train_dataset = train,
//                      .eval_dataset = test, .compute_metrics = accuracy,
//                      .callbacks = {std::make_shared<StopAt98>()}});  // trainer_callback.h
//     trainer.train();
//
// It is the loop of stage 5 with hooks. Programs override the virtual functions that they need;
// each is called when, and as often as, transformers calls its own. Callbacks see the rest.
//
// Every function is a collective: all processes construct and call alike. The main process prints:
// logs to the standard output, one dictionary per line; the banner and the progress bar to the
// standard error. AcceleratorOptions::quiet switches all of them off.
//
// Explained in docs/reference/6-trainer.md, with the differences from Python's counterpart of the
// same names: transformers.Trainer, version 5.20.
class Trainer {
 public:
  // Resolves the arguments, seeds, and sets up the processes (see Accelerator): after any fork.
  // UsageError for options that exclude each other, DistributedError for ranks with other
  // arguments.
  explicit Trainer(TrainerOptions options);
  virtual ~Trainer() = default;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains from the model's present weights. `resume_from_checkpoint`: the folder of a checkpoint,
  // or "true" for the last one in output_dir; DataError if there is none, or if it was saved with
  // save_only_model. "auto" is the newest intact one in output_dir, or a training from the start if
  // there is none. See Accelerator::load_state.
  //
  // Throws UsageError if it would save beside checkpoints of another run (docs/formats.md, "Files
  // of a Trainer"), and StoppedBySignal after kStopSignals, such as SIGTERM, which end the training
  // after a step, the same on all processes, with a checkpoint in output_dir (see StopSignal).
  TrainOutput train(const std::string& resume_from_checkpoint = "");

  // Loss and metrics over `dataset`, by default eval_dataset, under names with the prefix; logged.
  Metrics evaluate(std::shared_ptr<const Dataset> dataset = nullptr,
                   const std::string& metric_key_prefix = "eval");

  // Also returns the outputs; not logged.
  PredictionOutput predict(std::shared_ptr<const Dataset> dataset = nullptr,
                           const std::string& metric_key_prefix = "test");

  // Writes model.safetensors and training_args.json into `output_dir`, by default that of args.
  void save_model(const std::string& output_dir = "");

  // Prints metrics as an aligned table.
  void log_metrics(const std::string& split, const Metrics& metrics) const;
  // Writes metrics to output_dir/SPLIT_results.json and merges them into
  // output_dir/all_results.json. Does nothing without an output_dir.
  void save_metrics(const std::string& split, const Metrics& metrics) const;
  // Writes output_dir/trainer_state.json, if there is an output_dir.
  void save_state() const;

  // Callbacks run in the order in which they were added. A change during an event takes effect with
  // the next event.
  void add_callback(std::shared_ptr<TrainerCallback> callback) { callbacks_.add(callback); }
  // Removes a callback and returns it; nullptr if there is none.
  std::shared_ptr<TrainerCallback> pop_callback(const TrainerCallback& callback) {
    return callbacks_.pop([&](const TrainerCallback& own) { return &own == &callback; });
  }
  // The first one of that class: trainer.pop_callback<ProgressCallback>().
  template <typename Callback>
  std::shared_ptr<Callback> pop_callback() {
    return std::static_pointer_cast<Callback>(callbacks_.pop(
        [](const TrainerCallback& own) { return dynamic_cast<const Callback*>(&own) != nullptr; }));
  }
  // The same, and returns whether there was one.
  bool remove_callback(const TrainerCallback& own) { return pop_callback(own) != nullptr; }
  template <typename Callback>
  bool remove_callback() {
    return pop_callback<Callback>() != nullptr;
  }

  // Observes the steps of each training, as a TrainingMonitor's observers do. A StopObserver is
  // behind them.
  void observe(std::shared_ptr<StepObserver> observer) { observers_.push_back(observer); }

  const TrainingArguments& args() const { return args_; }
  const TrainerState& state() const { return state_; }
  Accelerator& accelerator() { return accelerator_; }
  Model& model() { return *model_; }  // without wrappers

 protected:
  // The loss of a batch, and the model's outputs: one call per batch of a training, and per batch
  // of an evaluation whose labels are there. By default the model gets every input but the labels,
  // and the loss is that of compute_loss_func, else cross-entropy smoothed by
  // label_smoothing_factor. Both take one tensor of labels: "labels" if that is a label name, else
  // the first label name. With outputs [N, classes, T] and labels [N, T], the loss of a sample is
  // the mean over its T labels; a label of -100 counts as one of loss 0.
  //
  // The loss is a mean over the batch of all processes and of the accumulation window: make it from
  // the sum over this part by num_items_in_batch.mean(sum), or, with sums in micro-batches,
  // mean(function of the sum, outputs, labels).
  virtual LossOutput compute_loss(Model& model, const Inputs& inputs,
                                  const NumItems& num_items_in_batch);

  // Forward and backward of one batch. Returns the loss, detached.
  virtual torch::Tensor training_step(Model& model, const Inputs& inputs,
                                      const NumItems& num_items_in_batch);

  // Forward of one batch in an evaluation, without gradients. By default the loss needs all
  // label_names among the inputs, at least one, or a training step before that computed its loss
  // without labels, such as that of an autoencoder. Otherwise a log line warns that there is none.
  virtual Prediction prediction_step(Model& model, const Inputs& inputs, bool prediction_loss_only);

  // Metrics by name, without prefix, once per evaluation that has outputs and labels. By default
  // those of TrainerOptions::compute_metrics.
  virtual Metrics compute_metrics(const EvalPrediction& prediction);

  // Called by train(), in this order, after get_train_dataloader: the first once per Trainer, the
  // second in each training. Not called for what TrainerOptions::optimizers has.
  virtual std::unique_ptr<torch::optim::Optimizer> create_optimizer();
  virtual std::unique_ptr<LrScheduler> create_scheduler(torch::optim::Optimizer& optimizer,
                                                        std::int64_t num_training_steps);

  // Loaders over all processes, which the Accelerator divides: one call per train(), evaluate()
  // (each evaluation in a training is one) and predict().
  virtual DataLoader get_train_dataloader();
  virtual DataLoader get_eval_dataloader(std::shared_ptr<const Dataset> dataset);
  virtual DataLoader get_test_dataloader(std::shared_ptr<const Dataset> dataset);

  // Records numbers in log_history, callbacks and trackers. Adds the epoch to them.
  virtual void log(Metrics& logs);

  // Floating-point operations of one batch of a training, for total_flos; by default not counted.
  virtual double floating_point_ops(const Inputs& /*inputs*/) { return 0.0; }

 private:
  // In micro-batches: this process's share of the mean loss of a batch, and the weight of that.
  using Shares = std::vector<std::pair<torch::Tensor, double>>;

  // --- trainer.cpp ---
  TrainerOptions checked(TrainerOptions options);
  void add_default_callbacks();
  TrainerEvent event();
  void call(TrainerEventHandler handler);
  void call(TrainerEventHandler handler, const Batch& batch, const torch::Tensor& loss);
  DataLoader sequential_loader(std::shared_ptr<const Dataset> dataset) const;

  // --- trainer_loop.cpp ---
  bool is_limited() const { return args_.fast_dev_run || args_.limit_train_batches != 1.0; }
  DataLoader limited(const DataLoader& loader) const;
  void prepare_model();
  void prepare_training();
  std::shared_ptr<LrScheduler> new_schedule();
  void start_trackers();
  void print_lines(const std::vector<std::string>& lines) const;
  void run_epochs();
  std::int64_t next_epoch() const;
  void warn_of_other_steps() const;
  // Returns whether its end saved a complete checkpoint. Sets the verdict of its last batch.
  bool run_epoch(std::int64_t epoch, StepObservers& observers, Verdict& verdict);
  // Stops at once after a verdict, except in the last step of an epoch: that ends first.
  Verdict end_batch(const StepEvent& event, std::int64_t epoch, std::int64_t done,
                    StepObservers& observers);
  void stop_after(Verdict verdict, bool saved);
  torch::Tensor train_on(const Batch& batch);
  Verdict optimizer_step(const StepEvent& event, StepObservers& observers);
  void clip_gradients();
  bool log_save_evaluate();  // returns whether it saved
  double take_loss();
  std::vector<double> means_of(const Shares& shares) const;
  void log_progress();
  TrainOutput finish_training(double seconds);

  // --- trainer_evaluation.cpp ---
  struct Gathered;
  std::shared_ptr<const Dataset> dataset_or_default(std::shared_ptr<const Dataset> dataset,
                                                    const char* function) const;
  void use_eval_loader(const DataLoader& loader);
  PredictionOutput evaluation_loop(const std::string& description, const std::string& prefix);
  void gather_step(const Batch& batch, Gathered& gathered);
  Metrics metrics_of(const Gathered& gathered, const PredictionOutput& output,
                     const std::string& prefix);
  void call(TrainerEventHandler handler, const PredictionOutput& output);
  void evaluate_in_training(bool choose);

  // --- trainer_checkpoints.cpp ---
  std::string checkpoint_to_resume(const std::string& path) const;
  void resume(const std::string& checkpoint);
  RunIdentity identity(bool resumes) const;
  nlohmann::json all_results() const;  // of output_dir; an empty object if there are none
  void require_own_output_dir(const std::string& resumed_from, bool automatically) const;
  bool is_new_best(const Metrics& metrics);
  void save_checkpoint(bool only_model);
  void limit_checkpoints(const std::vector<std::string>& keep, std::int64_t limit) const;
  void load_best_model();
  std::string checkpoint_path(std::int64_t step) const;

  // training_args.json of a checkpoint.
  struct ArgumentsFile {
    const Trainer& trainer;
    static constexpr bool kSavedByRank0 = true;  // of all ranks; see json_part
    nlohmann::json state_dict() const;
    std::function<void()> plan_load(const nlohmann::json& state, std::string_view origin) const;
  };

  std::vector<std::string> warnings_;  // of resolving the arguments
  TrainerOptions options_;             // with resolved arguments; model_ has the model
  const TrainingArguments& args_ = options_.args;
  Accelerator accelerator_;
  std::shared_ptr<Model> model_;  // without wrappers
  CallbackHandler callbacks_;
  std::vector<std::shared_ptr<StepObserver>> observers_;
  TrainerState state_;
  TrainerControl control_;
  TrainingPlan plan_;
  ArgumentsFile arguments_file_{*this};

  std::vector<double> initial_rates_;  // of the optimizer's groups

  std::shared_ptr<Model> prepared_model_;
  std::shared_ptr<AcceleratedOptimizer> optimizer_;
  std::shared_ptr<AcceleratedScheduler> scheduler_;
  std::optional<StepGraph> graph_;  // of training_step
  std::unique_ptr<AcceleratedDataLoader> train_loader_;
  std::unique_ptr<AcceleratedDataLoader> eval_loader_;  // of the present or last evaluation
  std::optional<NumItems> eval_items_;                  // of its present batch, in micro-batches
  std::optional<double> model_preparation_time_;        // if an evaluation came first
  bool trackers_started_ = false;

  torch::Tensor loss_;  // float64 scalar on the device: sum over the steps since the last log
  Shares shares_;       // the same in micro-batches
  bool loss_needs_labels_ = true;
  double logged_loss_ = 0.0;  // sum over the steps before it
  std::int64_t logged_step_ = 0;
  std::int64_t first_step_ = 0;  // of this call of train()
  torch::Tensor grad_norm_;      // of the last step, if it was computed
  double learning_rate_ = 0.0;   // of the last step
};

}  // namespace ladder
