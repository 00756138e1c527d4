// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/argument_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <ranges>
#include <utility>

#include "ladder/comm/process_group_options.h"
#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/core/text.h"
#include "ladder/io/json.h"
#include "ladder/parallel/replicate_options.h"

namespace ladder {
namespace {

using Json = nlohmann::json;
using Names = std::vector<std::string>;
using T = TrainingArguments;

constexpr OptionDetails kNotNegative{.least = 0.0};
constexpr OptionDetails kEpochsOrSteps{.least = 0.0, .most = kMaxEpochs};
constexpr OptionDetails kBelowOne{.least = 0.0, .most = 1.0, .below = true};
constexpr OptionDetails kBatchSize{.least = 1.0, .most = kMaxSamplesPerBatch};

template <auto kField>
constexpr auto flag(Effect effect, std::string_view name, std::string_view help) {
  return option<kField>(effect, name, "true|false", help, {.alone = "true"});
}

constexpr const char* kObject = "a JSON object";
constexpr const char* kObjectHint = "such as {\"key\": 1}";

// An object, or its text.
Json object_from(const GivenValue& given) {
  const auto refuse = [&](const auto&...) { given.refuse(kObject, kObjectHint); };
  Json object = given.value.is_string()
                    ? parse_untrusted_json(given.value.get_ref<const std::string&>(), refuse)
                    : given.value;
  if (!object.is_object()) refuse();
  return object;
}

constexpr Option<AcceleratorConfig> kSettings[] = {
    flag<&AcceleratorConfig::split_batches>(Effect::kTraining, "split_batches", ""),
    flag<&AcceleratorConfig::dispatch_batches>(Effect::kTraining, "dispatch_batches", ""),
    flag<&AcceleratorConfig::even_batches>(Effect::kTraining, "even_batches", "")};

// Settings of Python's class that have a single value here.
constexpr std::pair<std::string_view, std::string_view> kFixedSettings[] = {
    {"use_seedable_sampler", "true"},
    {"non_blocking", "false"},
    {"gradient_accumulation_kwargs", "null"},
    {"use_configured_state", "false"}};

void read_accelerator_config(const GivenValue& given, T& arguments) {
  arguments.accelerator_config = {};
  if (given.value.is_null()) return;
  const Json object = object_from(given);
  for (const auto& [name, setting] : object.items()) {
    const std::string place = fmt::format("{}.{}", given.where, name);
    const auto fixed =
        std::ranges::find(kFixedSettings, name, [](const auto& row) { return row.first; });
    if (const auto* row = find_option(kSettings, name)) {
      row->read(arguments.accelerator_config, place, setting);
    } else if (fixed == std::end(kFixedSettings)) {
      require_one_of(given.where, name, option_names(kSettings));
    } else if (text_of(setting) != text_of(WrittenJson::parse(fixed->second))) {
      GivenValue{given.row, place, setting, given.standard}.refuse(
          fixed->second, "no other value is supported: remove it");
    }
  }
}

WrittenJson write_accelerator_config(const OptionColumns& /*row*/, const T& arguments) {
  return to_json(kSettings, arguments.accelerator_config);
}

// As in Python, a text that looks like a number or a flag is one: YAML has only texts.
Json typed(const std::string& where, const Json& value) {
  if (value.is_structured()) {
    throw UsageError::malformed(where, "a number, a flag or a text", shortened(json_text(value)),
                                "such as {\"num_cycles\": 2}");
  }
  if (!value.is_string()) return value;
  const auto text = value.get<std::string>();
  const auto number = parse_number<double>(text);
  if (text == "true" || text == "false") return text == "true";
  if (const auto whole = parse_number<std::int64_t>(text)) return *whole;
  return number && std::isfinite(*number) ? Json(*number) : value;
}

void read_scheduler_kwargs(const GivenValue& given, T& arguments) {
  Json object = given.value.is_null() ? Json::object() : object_from(given);
  for (const auto& item : object.items()) {
    item.value() = typed(fmt::format("{}.{}", given.where, item.key()), item.value());
  }
  arguments.lr_scheduler_kwargs = json_text(object);
}

WrittenJson write_scheduler_kwargs(const OptionColumns& row, const T& arguments) {
  const Json text = arguments.lr_scheduler_kwargs;
  return object_from({row, std::string(row.name), text, {}});
}

void read_optimizer(const GivenValue& given, T& arguments) {
  if (given.value == "adamw_torch") {
    arguments.optim = OptimizerName::kAdamW;
  } else {
    read_value(given, arguments.optim);
  }
}

// Python's is a path or a flag.
void read_resume(const GivenValue& given, T& arguments) {
  auto& resume = arguments.resume_from_checkpoint;
  const auto word = to_lower(text_of(given.value));
  if (word == "true" || word == "false") {
    resume = word == "true" ? word : "";
  } else {
    read_member<T, &T::resume_from_checkpoint>(given, arguments);
  }
}

void read_backend(const GivenValue& given, T& arguments) {
  const bool automatic = given.value.is_null() || given.value == "" || given.value == "auto";
  arguments.ddp_backend.clear();
  if (!automatic) read_value(given, arguments.ddp_backend);
}

void read_report_to(const GivenValue& given, T& arguments) {
  Names trackers;
  if (!given.value.is_null()) read_value(given, trackers);
  for (const auto& name : trackers) {
    require_one_of(given.where, name, {"jsonl", "csv", "tensorboard", "all", "none"});
  }
  arguments.report_to = trackers == Names{"none"} ? Names{} : trackers;
}

// With the backends and the sums of this program.
constexpr std::string_view kBackendRow = "ddp_backend", kSumsRow = "sums";

using enum Effect;
// What a Trainer has in output_dir.
constexpr const char* kOwnFiles = "*_results.json|checkpoint-*|runs/*";

constexpr TrainingArgument kRows[] = {
    option<T>(kFolder, "output_dir", "FOLDER",
              "folder of checkpoints and results; empty in a file = write nothing",
              read_member<T, &T::output_dir>,
              [](const OptionColumns&, const T& arguments) -> WrittenJson {
                return arguments.output_dir;
              },
              {.role = PathRole::kFolder, .files = kOwnFiles}),
    option<&T::run_name>(kOwn, "run_name", "NAME",
                         "run name for trackers [last part of output_dir]"),
    option<&T::report_to>(kOwn, "report_to", "NAMES",
                          "trackers: jsonl,csv,tensorboard, all or none", read_report_to),

    option<&T::num_train_epochs>(kTraining, "num_train_epochs", "X", "training epochs",
                                 kEpochsOrSteps),
    option<&T::max_steps>(kTraining, "max_steps", "N",
                          "optimizer steps, override the epochs; -1 = no limit"),
    option<&T::per_device_train_batch_size>(kTraining, "per_device_train_batch_size", "N",
                                            "training samples per process and batch", kBatchSize),
    option<&T::per_device_eval_batch_size>(kTogether, "per_device_eval_batch_size", "N",
                                           "evaluation samples per process and batch", kBatchSize),
    option<&T::gradient_accumulation_steps>(kWeights, "gradient_accumulation_steps", "N",
                                            "batches per optimizer step",
                                            {1.0, kMaxBatchesPerStep}),

    option<&T::optim>(kTraining, "optim", "adamw_torch_fused|adam|sgd|adagrad|rmsprop",
                      "optimizer; adamw_torch is the same as adamw_torch_fused", read_optimizer),
    option<&T::learning_rate>(kOptimizer, "learning_rate", "X", "peak learning rate", kNotNegative),
    option<&T::weight_decay>(kOptimizer, "weight_decay", "X",
                             "weight decay, except for biases and LayerNorm", kNotNegative),
    option<&T::adam_beta1>(kOptimizer, "adam_beta1", "X", "beta1 of AdamW and Adam", kBelowOne),
    option<&T::adam_beta2>(kOptimizer, "adam_beta2", "X", "beta2 of AdamW and Adam", kBelowOne),
    option<&T::adam_epsilon>(kOptimizer, "adam_epsilon", "X", "epsilon of AdamW and Adam",
                             kNotNegative),
    option<&T::max_grad_norm>(kTraining, "max_grad_norm", "X",
                              "norm to clip gradients to; 0 = no clipping", kNotNegative),
    option<&T::label_smoothing_factor>(kWeights, "label_smoothing_factor", "X",
                                       "label smoothing, 0 to 1", {0.0, 1.0}),

    option<&T::lr_scheduler_type>(
        kTraining, "lr_scheduler_type",
        "linear|cosine|cosine_with_restarts|polynomial|constant|constant_with_warmup|"
        "inverse_sqrt|reduce_lr_on_plateau",
        "learning-rate schedule"),
    option<T>(kTraining, "lr_scheduler_kwargs", "JSON", "settings of the schedule",
              read_scheduler_kwargs, write_scheduler_kwargs),
    option<&T::warmup_steps>(kTraining, "warmup_steps", "X",
                             "warm-up steps; below 1: fraction of all steps", kEpochsOrSteps),
    option<&T::warmup_ratio>(kTraining, "warmup_ratio", "X", "deprecated: warmup_steps below 1",
                             kBelowOne),

    flag<&T::fp16>(kTraining, "fp16", "mixed precision in float16"),
    flag<&T::bf16>(kTraining, "bf16", "mixed precision in bfloat16"),
    flag<&T::tf32>(kTraining, "tf32", "TensorFloat-32 matrix products on a GPU"),
    flag<&T::cuda_graph>(kTraining, "cuda_graph", "forward and backward as one launch on a GPU"),

    option<&T::logging_strategy>(kTogether, "logging_strategy", "no|steps|epoch", "when to log"),
    option<&T::logging_steps>(kTogether, "logging_steps", "X",
                              "steps between logs; below 1: fraction of all"),
    flag<&T::logging_first_step>(kTogether, "logging_first_step", "log of the first step"),
    flag<&T::logging_nan_inf_filter>(kTogether, "logging_nan_inf_filter",
                                     "no NaN and inf in logged losses"),
    flag<&T::disable_tqdm>(kOwn, "disable_tqdm", "no progress bar"),
    option<&T::banner>(kOwn, "banner", "tutorial|v5",
                       "form of the first lines: tutorial, or transformers 5"),

    option<&T::eval_strategy>(kTogether, "eval_strategy", "no|steps|epoch", "when to evaluate"),
    option<&T::eval_steps>(kTogether, "eval_steps", "X",
                           "steps between evaluations [logging_steps]"),
    option<&T::eval_delay>(kTogether, "eval_delay", "X",
                           "epochs or steps before the first evaluation", kEpochsOrSteps),
    flag<&T::eval_on_start>(kTogether, "eval_on_start", "evaluation before the first step"),
    flag<&T::prediction_loss_only>(kTogether, "prediction_loss_only",
                                   "evaluation of the loss only"),

    option<&T::save_strategy>(kTogether, "save_strategy", "no|steps|epoch|best",
                              "when to write a checkpoint"),
    option<&T::save_steps>(kTogether, "save_steps", "X",
                           "steps between checkpoints; below 1: fraction of all"),
    option<&T::save_total_limit>(kTogether, "save_total_limit", "N", "checkpoints to keep [all]",
                                 {1.0}),
    flag<&T::save_only_model>(kTraining, "save_only_model", "checkpoints that cannot be resumed"),
    flag<&T::overwrite_output_dir>(kOwn, "overwrite_output_dir",
                                   "remove checkpoints of another run from output_dir"),
    flag<&T::load_best_model_at_end>(kTogether, "load_best_model_at_end",
                                     "weights of the best checkpoint after training"),
    option<&T::metric_for_best_model>(kTogether, "metric_for_best_model", "NAME",
                                      "metric of the best checkpoint, such as accuracy [loss]"),
    flag<&T::greater_is_better>(kTogether, "greater_is_better",
                                "direction of that metric [true unless it ends in loss]"),
    option<&T::resume_from_checkpoint>(
        kFolder, "resume_from_checkpoint", "PATH|auto",
        "checkpoint to resume from [the last in output_dir]; auto: the newest whole one, if any",
        read_resume, {.role = PathRole::kFolder, .alone = "true"}),
    flag<&T::ignore_data_skip>(kTogether, "ignore_data_skip",
                               "resume from the first batch of the epoch"),
    flag<&T::restore_callback_states_from_checkpoint>(
        kTogether, "restore_callback_states_from_checkpoint", "resume the state of callbacks"),

    option<&T::seed>(kTraining, "seed", "N", "seed for weights, shuffling, dropout, augmentation",
                     kNotNegative),
    option<&T::data_seed>(kTraining, "data_seed", "N", "seed for shuffling [seed]", kNotNegative),
    flag<&T::full_determinism>(kTraining, "full_determinism", "no nondeterministic operations"),

    option<&T::dataloader_num_workers>(kOwn, "dataloader_num_workers", "N",
                                       "data-loader threads; 0 = none", {0.0, kMaxWorkers}),
    flag<&T::dataloader_pin_memory>(kOwn, "dataloader_pin_memory",
                                    "page-locked batches, for copies to a GPU"),
    flag<&T::dataloader_drop_last>(kTraining, "dataloader_drop_last",
                                   "omission of the incomplete last batch of an epoch"),
    option<&T::label_names>(kTraining, "label_names", "NAMES", "inputs that are labels"),

    option<&T::ddp_backend>(kOwn, kBackendRow, "", "", read_backend),
    flag<&T::ddp_find_unused_parameters>(kTraining, "ddp_find_unused_parameters",
                                         "parameters without gradient allowed"),
    option<&T::ddp_bucket_cap_mb>(kTraining, "ddp_bucket_cap_mb", "N",
                                  "gradient bucket size in MiB [25]", {1.0, 1e6}),
    flag<&T::ddp_broadcast_buffers>(kTraining, "ddp_broadcast_buffers",
                                    "buffers of rank 0 on all ranks"),
    option<&T::ddp_timeout>(kOwn, "ddp_timeout", "N", "timeout of collectives in seconds",
                            {1.0, 604'800.0}),
    option<T>(kTraining, "accelerator_config", "JSON",
              "split_batches, even_batches, dispatch_batches", read_accelerator_config,
              write_accelerator_config),
    flag<&T::use_cpu>(kOwn, "use_cpu", "CPU even if GPUs are present"),
    option<&T::sums>(kWeights, kSumsRow, "", ""),
    option<&T::micro_batch>(kWeights, "micro_batch", "N",
                            "samples per micro-batch, with exact sums", kBatchSize),

    flag<&T::do_train>(kTogether, "do_train", "training"),
    flag<&T::do_eval>(kTogether, "do_eval", "evaluation at the end"),
    flag<&T::do_predict>(kTogether, "do_predict", "prediction at the end, with its metrics"),

    flag<&T::fast_dev_run>(kTraining, "fast_dev_run", "one training and one evaluation batch"),
    option<&T::limit_train_batches>(kTraining, "limit_train_batches", "X",
                                    "batches per epoch; up to 1: fraction of them"),
};

constexpr const char* kThreads = "workers are threads of this process";
constexpr const char* kNoHub = "there is no hub";
constexpr const char* kNoProjects = "no tracker here has projects";
constexpr const char* kNoTokens = "there are no tokens";
constexpr const char* kMainProcess = "the main process logs, all processes warn";

// Of fsdp_config and such: {"min_num_params": 0, "xla": false}.
bool switches_nothing_on(const nlohmann::json& value) {
  if (value.is_structured()) return std::ranges::all_of(value, switches_nothing_on);
  const auto text = to_lower(text_of(value));
  return text.empty() || text == "0" || text == "false";
}

// [], {} and "" stand for the default, as null does.
bool is_default(const UnsupportedArgument& argument, std::string_view where,
                const nlohmann::json& value) {
  if (value.empty() || value == "") return true;
  if (value.is_structured() && switches_nothing_on(value)) return true;
  const auto standard = nlohmann::json::parse(argument.default_json);
  if (standard == "no" && switches_nothing_on(value)) return true;
  if (standard.is_boolean() && value.is_string()) {
    return parse_bool(where, value.get<std::string>()) == standard.get<bool>();
  }
  return to_lower(text_of(value)) == to_lower(text_of(standard));
}

constexpr UnsupportedArgument kUnsupported[] = {
    // Refused, unless they have the default of transformers.
    {"ddp_static_graph"},
    {"deepspeed"},
    {"eval_accumulation_steps"},
    {"fsdp"},
    {"fsdp_config"},
    {"gradient_checkpointing_kwargs"},
    {"liger_kernel_config"},
    {"neftune_noise_alpha"},
    {"optim_args"},
    {"optim_target_modules"},
    {"parallelism_config"},
    {"torch_compile_backend"},
    {"torch_compile_mode"},
    {"torch_empty_cache_steps"},
    {"trackio_bucket_id"},
    {"trackio_static_space_id"},
    {"auto_find_batch_size", "false"},
    {"batch_eval_metrics", "false"},
    {"bf16_full_eval", "false"},
    {"enable_jit_checkpoint", "false"},
    {"eval_use_gather_object", "false"},
    {"fp16_full_eval", "false"},
    {"gradient_checkpointing", "false"},
    {"group_by_length", "false"},
    {"push_to_hub", "false"},
    {"save_on_each_node", "false"},
    {"torch_compile", "false"},
    {"use_liger_kernel", "false"},
    {"dataloader_in_order", "true"},
    {"debug", "\"\""},
    {"eval_do_concat_batches", "true"},
    {"include_for_metrics", "[]"},
    {"include_num_input_tokens_seen", "\"no\""},
    {"skip_memory_metrics", "true"},
    {"train_sampling_strategy", "\"random\""},
    // The same of transformers 4.
    {"adafactor", "false"},
    {"dispatch_batches"},
    {"fp16_backend", "\"auto\""},
    {"fp16_opt_level", "\"O1\""},
    {"fsdp_min_num_params", "0"},
    {"fsdp_transformer_layer_cls_to_wrap"},
    {"half_precision_backend", "\"auto\""},
    {"include_inputs_for_metrics", "false"},
    {"jit_mode_eval", "false"},
    {"mp_parameters", "\"\""},
    {"past_index", "-1"},
    {"per_gpu_eval_batch_size"},
    {"per_gpu_train_batch_size"},
    {"sharded_ddp"},
    {"split_batches", "false"},
    {"torchdynamo"},
    {"tpu_metrics_debug", "false"},
    {"tpu_num_cores"},
    {"use_ipex", "false"},
    {"use_legacy_prediction_loop", "false"},
    {"use_mps_device", "false"},
    {"xpu_backend"},
    // Without effect here.
    {"average_tokens_across_devices", "true", kNoTokens},
    {"dataloader_multiprocessing_context", "null", kThreads},
    {"dataloader_persistent_workers", "false", kThreads},
    {"dataloader_prefetch_factor", "null", "the loader chooses its prefetch depth"},
    {"hub_always_push", "false", kNoHub},
    {"hub_model_id", "null", kNoHub},
    {"hub_private_repo", "null", kNoHub},
    {"hub_revision", "null", kNoHub},
    {"hub_strategy", "\"every_save\"", kNoHub},
    {"hub_token", "null", kNoHub},
    {"include_tokens_per_second", "false", kNoTokens},
    {"length_column_name", "\"length\"", kNoTokens},
    {"local_rank", "-1", "the launcher's LOCAL_RANK counts"},
    {"log_level", "\"passive\"", kMainProcess},
    {"log_level_replica", "\"warning\"", kMainProcess},
    {"log_on_each_node", "true", kMainProcess},
    {"logging_dir", "null", "trackers write into output_dir"},
    {"project", "\"huggingface\"", kNoProjects},
    {"push_to_hub_model_id", "null", kNoHub},
    {"push_to_hub_organization", "null", kNoHub},
    {"push_to_hub_token", "null", kNoHub},
    {"ray_scope", "\"last\"", "there is no hyperparameter search"},
    {"remove_unused_columns", "true", "data_collator defines the contents of a batch"},
    {"save_safetensors", "true", "weights are always safetensors"},
    {"trackio_space_id", "null", kNoProjects},
    {"use_cache", "false", "no model here has a cache"}};

}  // namespace

std::span<const TrainingArgument> training_argument_table() {
  static const auto names = fmt::format("{}", fmt::join(backend_names() | std::views::keys, "|"));
  static const auto help = fmt::format("communication backend [{}]", automatic_backends());
  static const auto sums = sum_choices(), help_of_sums = sums_help();
  static const auto rows = [] {
    auto all = std::to_array(kRows);
    const auto complete = [&](std::string_view name, std::string_view value,
                              std::string_view text) {
      auto& row = *std::ranges::find(all, name, &TrainingArgument::name);
      row.value = value;
      row.help = text;
    };
    complete(kBackendRow, names, help);
    complete(kSumsRow, sums, help_of_sums);
    return all;
  }();
  return rows;
}

const TrainingArgument* find_argument(std::string_view name) {
  return find_option(training_argument_table(), name);
}

std::span<const UnsupportedArgument> unsupported_argument_table() { return kUnsupported; }

const UnsupportedArgument* find_unsupported_argument(std::string_view name) {
  return find_option(kUnsupported, name);
}

std::optional<std::string> accept_default(const UnsupportedArgument& argument,
                                          std::string_view where, const nlohmann::json& value) {
  if (is_default(argument, where, value)) return std::nullopt;
  if (argument.reason.empty()) {
    throw UsageError::conflict(
        where, "belongs to transformers and is not supported here",
        fmt::format("remove it; its default there is {}", argument.default_json));
  }
  return fmt::format("{}: accepted, without effect: {}", argument.name, argument.reason);
}

std::span<const DeprecatedName> deprecated_names() {
  static constexpr DeprecatedName kNames[] = {{"evaluation_strategy", "eval_strategy"},
                                              {"no_cuda", "use_cpu"}};
  return kNames;
}

std::string deprecation_warning(const DeprecatedName& name) {
  return fmt::format("{}: old name of {}", name.old, name.now);
}

}  // namespace ladder
