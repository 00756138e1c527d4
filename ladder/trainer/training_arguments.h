// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/accelerate/accelerator_options.h"

namespace ladder {

enum class IntervalStrategy { kNo, kSteps, kEpoch };
enum class SaveStrategy { kNo, kSteps, kEpoch, kBest };
enum class OptimizerName { kAdamW, kAdam, kSgd, kAdagrad, kRmsprop };
enum class SchedulerType {
  kLinear,
  kCosine,
  kCosineWithRestarts,
  kPolynomial,
  kConstant,
  kConstantWithWarmup,
  kInverseSqrt,
  kReduceLrOnPlateau
};
enum class Banner { kTutorial, kV5 };

// How batches are dealt to the processes: `accelerator_config` of transformers. JSON object.
struct AcceleratorConfig {
  // per_device_train_batch_size is that of all processes together, which divide each batch.
  bool split_batches = false;
  bool dispatch_batches = false;  // only the main process reads
  bool even_batches = true;       // repeat samples, so that all processes get as many

  // split_batches without even_batches is this library's own mode: any size, nothing repeated.
  LoaderMode mode() const;
};

// How a Trainer trains: what batch, how long, with what optimizer, when to log, evaluate and save.
//
// Names, meanings and defaults are those of transformers.TrainingArguments, version 5.20, so that
// a list of arguments carries over. What that has and this has not is refused by name.
//
//     TrainingArguments arguments;
//     arguments.output_dir = "basic-trainer";
//     arguments.per_device_train_batch_size = 64;
//     arguments.eval_strategy = IntervalStrategy::kEpoch;
//
// Steps are steps of the optimizer. A value for logging_steps, eval_steps, save_steps or
// warmup_steps below 1 is a part of all steps: 0.1 = ten times a run.
struct TrainingArguments {
  // --- Where to ---
  std::string output_dir = "trainer_output";  // of checkpoints and results; empty = write nothing
  std::string run_name;                       // of the trackers; empty = the name of output_dir
  std::vector<std::string> report_to;         // trackers: jsonl, csv, tensorboard

  // --- How long, and how much at once ---
  double num_train_epochs = 3.0;                 // may end in the middle of one
  std::int64_t max_steps = -1;                   // > 0: wins over num_train_epochs
  std::int64_t per_device_train_batch_size = 8;  // of each process
  std::int64_t per_device_eval_batch_size = 8;
  int gradient_accumulation_steps = 1;  // batches a step

  // --- Optimizer ---
  OptimizerName optim = OptimizerName::kAdamW;  // adamw_torch, adamw_torch_fused, adam, sgd, ...
  double learning_rate = 5e-5;
  double weight_decay = 0.0;  // not of biases; see make_optimizer
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;           // clip the gradients to this norm; 0 = do not
  double label_smoothing_factor = 0.0;  // in [0, 1]

  // --- Learning rate over time ---
  SchedulerType lr_scheduler_type = SchedulerType::kLinear;
  std::string lr_scheduler_kwargs = "{}";  // JSON object of further numbers for the schedule
  double warmup_steps = 0.0;
  std::optional<double> warmup_ratio;  // old name: warmup_steps below 1

  // --- Precision ---
  bool fp16 = false;
  bool bf16 = false;
  std::optional<bool> tf32;  // products of float32 matrices on a GPU in 19 bits

  // --- Logging ---
  IntervalStrategy logging_strategy = IntervalStrategy::kSteps;
  double logging_steps = 500.0;
  bool logging_first_step = false;
  bool logging_nan_inf_filter = true;  // a loss of NaN or inf counts as the mean of the others
  bool disable_tqdm = false;           // no progress bar
  Banner banner = Banner::kTutorial;   // lines at the start: tutorial, or v5 (transformers 5)

  // --- Evaluation ---
  IntervalStrategy eval_strategy = IntervalStrategy::kNo;  // old name: evaluation_strategy
  std::optional<double> eval_steps;                        // unset = logging_steps
  double eval_delay = 0.0;                                 // epochs or steps before the first one
  bool eval_on_start = false;
  bool prediction_loss_only = false;  // no outputs, so no metrics but the loss

  // --- Saving ---
  SaveStrategy save_strategy = SaveStrategy::kSteps;
  double save_steps = 500.0;
  std::optional<std::int64_t> save_total_limit;  // checkpoints to keep, the best among them
  bool save_only_model = false;                  // no resume from such a checkpoint
  bool load_best_model_at_end = false;
  std::string metric_for_best_model;      // such as loss or eval_accuracy; empty = choose
  std::optional<bool> greater_is_better;  // unset = unless the metric's name ends in loss
  std::string resume_from_checkpoint;     // a folder, or "true" = the last in output_dir
  bool ignore_data_skip = false;          // resume with the first batch of the epoch
  bool restore_callback_states_from_checkpoint = false;

  // --- Reproducibility ---
  std::uint64_t seed = 42;
  std::optional<std::uint64_t> data_seed;  // of the order; unset = seed
  bool full_determinism = false;           // refuse operations that may differ from run to run

  // --- Data ---
  int dataloader_num_workers = 0;
  bool dataloader_pin_memory = true;
  bool dataloader_drop_last = false;
  std::vector<std::string> label_names = {"labels"};

  // --- Many processes ---
  std::string ddp_backend;  // gloo or nccl; empty = choose
  bool ddp_find_unused_parameters = false;
  std::optional<int> ddp_bucket_cap_mb;
  bool ddp_broadcast_buffers = true;
  std::int64_t ddp_timeout = 1800;  // seconds
  AcceleratorConfig accelerator_config;
  bool use_cpu = false;

  // --- What a program does with its Trainer ---
  bool do_train = false;
  bool do_eval = false;
  bool do_predict = false;

  // --- Short runs, to try things out ---
  bool fast_dev_run = false;         // one batch of training and of evaluation, no checkpoint
  double limit_train_batches = 1.0;  // above 1: so many of each epoch; up to 1: this part
};

// Fills in what follows from other arguments, and refuses what cannot be. Returns what a person
// should know of it, a line each. A second call changes nothing and returns nothing.
//
//   - eval_strategy other than no sets do_eval; eval_steps are logging_steps if unset;
//   - load_best_model_at_end and reduce_lr_on_plateau need a metric_for_best_model: "loss" if
//     unset; greater_is_better follows from its name;
//   - warmup_ratio becomes warmup_steps; "~/" in output_dir the home folder; use_cpu switches
//     dataloader_pin_memory off; report_to "all" becomes the trackers there are.
//
// Refused are numbers outside their range and pairs that contradict each other, as transformers
// does, and some that it lets pass: a batch size of 0, betas of 1, load_best_model_at_end without
// evaluation, save_strategy best without evaluation. Throws UsageError, which names the argument.
std::vector<std::string> resolve(TrainingArguments& arguments);

// All arguments, in the order above, by their names in transformers; null for what is unset.
// Numbers keep their last bit. The content of `training_args.json`.
nlohmann::ordered_json to_json(const TrainingArguments& arguments);

// The reverse; arguments that the object lacks keep their defaults. Takes what transformers writes
// by to_json_string() too. `origin`, such as the file, begins the messages.
//
// Throws UsageError for a value of another type and an unknown name, with the nearest. Arguments of
// transformers that this library has not may be there with their default; another value is refused,
// unless it could make no difference here: that is a line in `notes`, as is an old name.
TrainingArguments training_arguments_from(const nlohmann::json& json, std::string_view origin,
                                          std::vector<std::string>* notes = nullptr);

// Reads a file by its name's end: .json, .yaml or .yml; at most 64 KiB, a name and a value each:
//
//     learning_rate: 1e-3
//     eval_strategy: epoch
//     accelerator_config: {split_batches: true}
//
// In YAML errors begin with file and line. resolve() is the caller's.
TrainingArguments read_training_arguments(const std::string& path,
                                          std::vector<std::string>* notes = nullptr);

}  // namespace ladder
