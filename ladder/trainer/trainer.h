// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/core/log.h"
#include "ladder/data/batch.h"
#include "ladder/data/data_loader.h"
#include "ladder/data/dataset.h"
#include "ladder/data/transform.h"
#include "ladder/nn/model.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/train/stop_signal.h"
#include "ladder/trainer/metrics.h"
#include "ladder/trainer/trainer_callback.h"
#include "ladder/trainer/trainer_state.h"
#include "ladder/trainer/training_arguments.h"
#include "ladder/trainer/training_plan.h"

namespace ladder {

// Makes the named tensors of this process's part of a batch, which is on the device already: the
// inputs of the model, and the labels under the names of TrainingArguments::label_names ("labels"
// by default). The part may be empty (N = 0).
using DataCollator = std::function<Inputs(const Batch&)>;

// The inputs of the batch, a single one called "x", and its targets as "labels".
Inputs default_data_collator(const Batch& batch);

struct LossOutput {
  torch::Tensor loss;     // scalar
  torch::Tensor outputs;  // of the model, one row per sample
};

// Of one batch; without labels there is no loss and no label, with prediction_loss_only the loss
// alone. What is not there is undefined.
struct Prediction {
  torch::Tensor loss;     // scalar: mean over this process's part
  torch::Tensor outputs;  // one row per sample
  torch::Tensor labels;   // one row per sample
};

// Of a whole data set, in its order, each sample once; the same on all processes.
struct EvalPrediction {
  torch::Tensor predictions;
  torch::Tensor label_ids;
};

struct PredictionOutput {
  torch::Tensor predictions;
  torch::Tensor label_ids;
  Metrics metrics;
  std::int64_t num_samples = 0;
};

struct TrainOutput {
  std::int64_t global_step = 0;
  double training_loss = 0.0;  // mean over the steps of this call
  Metrics metrics;
};

// The part of the predictions whose highest score is that of their label, from 0 to 1, as a metric
// named "accuracy".
Metrics accuracy(const EvalPrediction& prediction);

// The loss of a batch from the model's outputs; see Trainer::compute_loss.
using LossFunction = std::function<torch::Tensor(
    const torch::Tensor& outputs, const torch::Tensor& labels, const NumItems& num_items_in_batch)>;
using MetricsFunction = std::function<Metrics(const EvalPrediction& prediction)>;
using OptimizerFunction =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const Model& model)>;

// An optimizer of the caller's own, and a scheduler for it; either may be left out.
struct Optimizers {
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::shared_ptr<LrScheduler> lr_scheduler;
};

// What a Trainer is made of.
struct TrainerOptions {
  std::shared_ptr<Model> model;                        // this, or:
  std::function<std::shared_ptr<Model>()> model_init;  // called when the seed is set
  TrainingArguments args = {};
  std::shared_ptr<const Dataset> train_dataset = nullptr;
  std::shared_ptr<const Dataset> eval_dataset = nullptr;
  DataCollator data_collator = default_data_collator;
  LossFunction compute_loss_func = nullptr;   // empty = cross-entropy
  MetricsFunction compute_metrics = nullptr;  // empty = none
  std::vector<std::shared_ptr<TrainerCallback>> callbacks;
  Optimizers optimizers = {};  // or a function that makes the first, when the model is there:
  OptimizerFunction optimizer_init = nullptr;
  std::shared_ptr<const Transform> train_transform = nullptr;
  AcceleratorOptions accelerator = {};  // what args do not say: threads, config_file, quiet, ...
};

// Trains a model without a loop in the program: forward, backward, step, learning rate, logs,
// evaluations and checkpoints, on one process or on many.
//
//     TrainingArguments arguments;
//     arguments.output_dir = "basic-trainer";
//     arguments.eval_strategy = IntervalStrategy::kEpoch;
//     Trainer trainer({.model = model, .args = arguments,
//                      .train_dataset = train, .eval_dataset = test});
//     trainer.train();
//
// It is the loop of stage 5 with hooks: an Accelerator prepares, weighs, clips, gathers and saves.
// What is virtual is there to be overridden; most programs override compute_loss and
// compute_metrics, or nothing. Callbacks see the rest (trainer_callback.h).
//
// Everything is a collective: all processes construct and call alike. The main process prints.
// Logs go to the standard output, one dictionary per line, the banner and the progress bar to the
// standard error; AcceleratorOptions::quiet leaves all of them out.
//
// Python's counterpart, whose names these are: transformers.Trainer, version 5.20. Other than
// there, several GPUs in one process are never used unasked, and evaluations count every sample,
// whatever dataloader_drop_last says.
class Trainer {
 public:
  // Resolves the arguments, seeds, and sets up the processes (see Accelerator): after any fork.
  // UsageError for what does not fit together.
  explicit Trainer(TrainerOptions options);
  virtual ~Trainer() = default;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains from the weights that the model has. `resume_from_checkpoint`: the folder of a
  // checkpoint, or "true" for the last one in output_dir; the training then goes on as if it had
  // not been interrupted (see Accelerator::load_state). DataError if there is none, or one that was
  // saved with save_only_model.
  //
  // SIGINT and SIGTERM end it after a step, the same on all processes, with a checkpoint in
  // output_dir whatever save_strategy says: see StopSignal. It then throws StoppedBySignal.
  TrainOutput train(const std::string& resume_from_checkpoint = "");

  // Loss and metrics over `dataset`, by default eval_dataset, under names with the prefix; logged.
  Metrics evaluate(std::shared_ptr<const Dataset> dataset = nullptr,
                   const std::string& metric_key_prefix = "eval");

  // The outputs too; not logged.
  PredictionOutput predict(std::shared_ptr<const Dataset> dataset = nullptr,
                           const std::string& metric_key_prefix = "test");

  // Writes model.safetensors and training_args.json into `output_dir`, by default that of args.
  void save_model(const std::string& output_dir = "");

  // Prints metrics as an aligned table; writes them to output_dir/SPLIT_results.json, and into
  // output_dir/all_results.json. Writes nothing without an output_dir.
  void log_metrics(const std::string& split, const Metrics& metrics) const;
  void save_metrics(const std::string& split, const Metrics& metrics) const;
  // Writes output_dir/trainer_state.json.
  void save_state() const;

  void add_callback(std::shared_ptr<TrainerCallback> callback);
  bool remove_callback(const TrainerCallback& callback) { return callbacks_.remove(callback); }

  const TrainingArguments& args() const { return args_; }
  const TrainerState& state() const { return state_; }
  Accelerator& accelerator() { return accelerator_; }
  Model& model() { return *model_; }  // without wrappers

 protected:
  // The loss of a batch, and the model's outputs. By default that of compute_loss_func, else
  // cross-entropy of the outputs, smoothed by label_smoothing_factor.
  //
  // The loss is a mean over the batch of all processes and of all of its parts. Make it from the
  // sum over the samples at hand: num_items_in_batch.mean(sum). A plain mean over this process's
  // part is the same only if all parts are of one size, and NaN for an empty one.
  virtual LossOutput compute_loss(Model& model, const Inputs& inputs,
                                  const NumItems& num_items_in_batch);

  // Forward and backward of one batch. Returns the loss, detached.
  virtual torch::Tensor training_step(Model& model, const Inputs& inputs,
                                      const NumItems& num_items_in_batch);

  // Forward of one batch in an evaluation, without gradients.
  virtual Prediction prediction_step(Model& model, const Inputs& inputs, bool prediction_loss_only);

  // Metrics by name, without prefix. By default those of TrainerOptions::compute_metrics.
  virtual Metrics compute_metrics(const EvalPrediction& prediction);

  virtual std::unique_ptr<torch::optim::Optimizer> create_optimizer();
  virtual std::unique_ptr<LrScheduler> create_scheduler(torch::optim::Optimizer& optimizer,
                                                        std::int64_t num_training_steps);

  // Loaders over all processes; the Accelerator divides them.
  virtual DataLoader get_train_dataloader();
  virtual DataLoader get_eval_dataloader(std::shared_ptr<const Dataset> dataset);

  // Takes note of numbers: log_history, callbacks, trackers. Adds the epoch to them.
  virtual void log(Metrics& logs);

  // Floating-point operations of one batch, for total_flos; by default not counted.
  virtual double floating_point_ops(const Inputs& /*inputs*/) { return 0.0; }

 private:
  // --- trainer.cpp ---
  std::shared_ptr<Model> require_model(const TrainerOptions& options) const;
  void require_possible(const TrainerOptions& options) const;
  void add_default_callbacks();
  TrainerEvent event();
  void call(TrainerEventHandler handler);
  void call(TrainerEventHandler handler, const Batch& batch, const torch::Tensor& loss);

  // --- trainer_loop.cpp ---
  bool is_limited() const { return args_.fast_dev_run || args_.limit_train_batches != 1.0; }
  DataLoader limited(const DataLoader& loader) const;
  void prepare_model();
  TrainingSizes training_setup() const;
  void begin_state();
  void prepare_training();
  std::shared_ptr<LrScheduler> new_schedule();
  void start_trackers();
  void say(const std::string& line) const;
  void print_banner(bool resumed) const;
  void run_epochs();
  void run_epoch(std::int64_t epoch, StopSignal& stop);
  [[noreturn]] void end_by(int signal);
  torch::Tensor train_on(const Batch& batch);
  void add_to_loss(const torch::Tensor& loss);
  void take_step(const Batch& batch, const torch::Tensor& loss);
  void clip_gradients();
  bool norm_is_logged() const;
  void log_save_evaluate();
  void log_progress();
  TrainOutput finish_training(double seconds);

  // --- trainer_evaluation.cpp ---
  struct Gathered;
  AcceleratedDataLoader eval_loader(std::shared_ptr<const Dataset> dataset);
  void choose_eval_loader(std::shared_ptr<const Dataset> dataset, const char* function);
  void call(TrainerEventHandler handler, const PredictionOutput& output);
  PredictionOutput evaluation_loop(const AcceleratedDataLoader& loader,
                                   const std::string& description, const std::string& prefix);
  void gather_step(const Batch& batch, Gathered& gathered);
  Metrics metrics_of(const Gathered& gathered, const PredictionOutput& output,
                     const std::string& prefix);
  void evaluate_in_training(bool choose);

  // --- trainer_checkpoints.cpp ---
  std::string checkpoint_to_resume(const std::string& path) const;
  void resume(const std::string& checkpoint);
  bool is_new_best(const Metrics& metrics);
  void save_checkpoint(bool only_model);
  void rotate_checkpoints(const std::vector<std::string>& keep, std::int64_t limit) const;
  void load_best_model();
  std::string checkpoint_path(std::int64_t step) const;

  // training_args.json of a checkpoint.
  struct ArgumentsFile {
    const Trainer& trainer;
    nlohmann::json state_dict() const;
    std::function<void()> plan_load(const nlohmann::json& state, std::string_view origin) const;
  };

  std::vector<std::string> notes_;  // of resolving args; made before them
  TrainingArguments args_;
  Accelerator accelerator_;
  std::shared_ptr<Model> model_;  // as it was given
  std::shared_ptr<const Dataset> train_dataset_;
  std::shared_ptr<const Dataset> eval_dataset_;
  DataCollator collate_;
  LossFunction loss_function_;
  MetricsFunction metrics_function_;
  OptimizerFunction optimizer_init_;
  Optimizers optimizers_;
  std::shared_ptr<const Transform> train_transform_;
  CallbackHandler callbacks_;
  TrainerState state_;
  TrainerControl control_;
  TrainingPlan plan_;
  ArgumentsFile arguments_file_{*this};

  std::vector<double> initial_rates_;  // of the optimizer's groups

  std::shared_ptr<Model> prepared_model_;
  std::shared_ptr<AcceleratedOptimizer> optimizer_;
  std::shared_ptr<AcceleratedScheduler> scheduler_;
  std::unique_ptr<AcceleratedDataLoader> train_loader_;
  std::unique_ptr<AcceleratedDataLoader> eval_loader_;  // of eval_dataset_, or the last evaluation
  std::optional<double> model_preparation_time_;        // if an evaluation came first
  bool trackers_started_ = false;

  torch::Tensor loss_;        // float64 scalar on the device: sum over the steps since the last log
  double logged_loss_ = 0.0;  // sum over the steps before it
  std::int64_t logged_step_ = 0;
  std::int64_t first_step_ = 0;  // of this call of train()
  torch::Tensor grad_norm_;      // of the last step, if it was computed
  double learning_rate_ = 0.0;   // of the last step
};

}  // namespace ladder
