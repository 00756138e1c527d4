// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/accelerate/accelerator_options.h"
#include "ladder/parallel/replicate_options.h"

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
// Earlier names of the values of TrainingArguments::sums.
struct Sums {
  static constexpr const char* kFast = "fast";
  static constexpr const char* kExact = "exact";
};

// How the processes share batches: `accelerator_config` of transformers. A JSON object in files.
struct AcceleratorConfig {
  bool split_batches = false;     // divide per_device_train_batch_size over the processes
  bool dispatch_batches = false;  // only the main process reads samples
  bool even_batches = true;       // repeat samples until all processes have the same number

  // split_batches without even_batches is this library's own mode: any size, no repetition.
  LoaderMode mode() const;
};

// The settings of a Trainer: batch sizes, length, optimizer, and when to log, evaluate and save.
//
// Names, meanings and defaults are those of transformers.TrainingArguments, version 5.20, so that
// a list of arguments carries over. Arguments that exist only there are refused by name.
//
//     TrainingArguments arguments;
//     arguments.output_dir = "basic-trainer";
//     arguments.per_device_train_batch_size = 64;
//     arguments.eval_strategy = IntervalStrategy::kEpoch;
//
// Steps are optimizer steps. A value below 1 for logging_steps, eval_steps, save_steps or
// warmup_steps is a fraction of all steps: 0.1 is ten times per run.
struct TrainingArguments {
  // --- Output ---
  std::string output_dir = "trainer_output";  // checkpoints and results; empty = write nothing
  std::string run_name;                       // for trackers; empty = last part of output_dir
  std::vector<std::string> report_to;         // trackers: jsonl, csv, tensorboard

  // --- Length and batch size ---
  double num_train_epochs = 3.0;                 // fractions allowed
  std::int64_t max_steps = -1;                   // > 0: overrides num_train_epochs
  std::int64_t per_device_train_batch_size = 8;  // samples per process and batch
  std::int64_t per_device_eval_batch_size = 8;
  int gradient_accumulation_steps = 1;  // batches per optimizer step

  // --- Optimizer ---
  OptimizerName optim = OptimizerName::kAdamW;  // adamw_torch, adamw_torch_fused, adam, sgd, ...
  double learning_rate = 5e-5;
  double weight_decay = 0.0;  // not of biases; see make_optimizer
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;           // clip gradients to this norm; 0 = no clipping
  double label_smoothing_factor = 0.0;  // in [0, 1]

  // --- Learning-rate schedule ---
  SchedulerType lr_scheduler_type = SchedulerType::kLinear;
  std::string lr_scheduler_kwargs = "{}";  // JSON object of further settings of the schedule
  double warmup_steps = 0.0;
  std::optional<double> warmup_ratio;  // deprecated: warmup_steps below 1

  // --- Precision ---
  bool fp16 = false;
  bool bf16 = false;
  std::optional<bool> tf32;  // TensorFloat-32 for matrix products on a GPU
  bool cuda_graph = false;   // forward and backward as one launch on a GPU: StepGraph

  // --- Logging ---
  IntervalStrategy logging_strategy = IntervalStrategy::kSteps;
  double logging_steps = 500.0;
  bool logging_first_step = false;
  bool logging_nan_inf_filter = true;  // log the mean of the other losses for NaN and inf
  bool disable_tqdm = false;           // no progress bar
  Banner banner = Banner::kTutorial;   // first lines: tutorial, or v5 (transformers 5)

  // --- Evaluation ---
  IntervalStrategy eval_strategy = IntervalStrategy::kNo;  // deprecated: evaluation_strategy
  std::optional<double> eval_steps;                        // unset = logging_steps
  double eval_delay = 0.0;                                 // epochs or steps without evaluation
  bool eval_on_start = false;
  bool prediction_loss_only = false;  // only the loss: no outputs, no other metrics

  // --- Saving ---
  SaveStrategy save_strategy = SaveStrategy::kSteps;
  double save_steps = 500.0;
  std::optional<std::int64_t> save_total_limit;  // checkpoints to keep, including the best
  bool save_only_model = false;                  // smaller checkpoints that cannot be resumed
  bool overwrite_output_dir = false;  // of earlier transformers: remove the checkpoints of another
                                      // run from output_dir; without it, they are an error
  bool load_best_model_at_end = false;
  std::string metric_for_best_model;      // such as loss or eval_accuracy; empty = loss if needed
  std::optional<bool> greater_is_better;  // unset: false if the metric's name ends in loss
  std::string resume_from_checkpoint;     // a folder; "true": the last one in output_dir; "auto":
                                          // the newest intact one there, or a fresh start (not in
                                          // transformers; a folder of this name is "./auto")
  bool ignore_data_skip = false;          // resume with the first batch of the epoch
  bool restore_callback_states_from_checkpoint = false;

  // --- Reproducibility ---
  std::uint64_t seed = 42;
  std::optional<std::uint64_t> data_seed;  // for shuffling; unset = seed
  bool full_determinism = false;           // refuse nondeterministic operations

  // --- Data ---
  int dataloader_num_workers = 0;
  bool dataloader_pin_memory = true;
  bool dataloader_drop_last = false;
  std::vector<std::string> label_names = {"labels"};  // inputs that are labels; may be empty

  // --- Many processes ---
  std::string ddp_backend;  // gloo, nccl or shm; empty = automatic
  bool ddp_find_unused_parameters = false;
  std::optional<int> ddp_bucket_cap_mb;
  bool ddp_broadcast_buffers = true;
  std::int64_t ddp_timeout = 1800;  // seconds
  AcceleratorConfig accelerator_config;
  bool use_cpu = false;
  std::string sums = "fast";      // not in transformers; exact: the same weights for any number of
                                  // processes and threads, see replicate.h
  std::int64_t micro_batch = 16;  // not in transformers: samples per micro-batch, unless fast

  // --- For the program; a Trainer ignores them ---
  bool do_train = false;
  bool do_eval = false;
  bool do_predict = false;

  // --- Short test runs ---
  bool fast_dev_run = false;         // one training and one evaluation batch, no checkpoint
  double limit_train_batches = 1.0;  // above 1: batches per epoch; up to 1: fraction of them

  // Of sums and micro_batch.
  ReplicateOptions replicate_options() const { return {.sums = sums, .micro_batch = micro_batch}; }
};

// Derives arguments from others, and checks all of them. Returns warnings, one line each. A second
// call changes nothing and returns nothing.
//
//   - eval_strategy other than no sets do_eval; eval_steps are logging_steps if unset;
//   - load_best_model_at_end and reduce_lr_on_plateau set metric_for_best_model to "loss" if unset;
//     greater_is_better follows from its name;
//   - sums other than fast need batches that the processes divide: accelerator_config with
//     split_batches and without even_batches;
//   - warmup_ratio becomes warmup_steps; "~/" in output_dir the home folder; use_cpu switches
//     dataloader_pin_memory off; report_to "all" becomes all trackers.
//
// Throws UsageError, which names the argument, for numbers out of range and contradictions.
std::vector<std::string> resolve(TrainingArguments& arguments);

// All arguments, in the order above, by their names in transformers; null for unset ones. Numbers
// keep their last bit. The content of `training_args.json`.
nlohmann::ordered_json to_json(const TrainingArguments& arguments);

// The reverse; also reads the output of to_json_string() of transformers. Arguments that the object
// lacks keep their defaults. `origin`, such as the file, begins the messages.
//
// Throws UsageError for a value of another type, and for an unknown name, with the nearest one. An
// argument that exists only in transformers is accepted with its default, and refused with another
// value; if that value makes no difference here, it adds a line to `warnings`, as a deprecated name
// does.
TrainingArguments training_arguments_from(const nlohmann::json& json, std::string_view origin,
                                          std::vector<std::string>* warnings = nullptr);

// Reads a file that ends in .json, .yaml or .yml, at most 64 KiB, with one name and value per line.
// In YAML, errors begin with file and line. Call resolve() afterwards; a Trainer does.
TrainingArguments read_training_arguments(const std::string& path,
                                          std::vector<std::string>* warnings = nullptr);

}  // namespace ladder
