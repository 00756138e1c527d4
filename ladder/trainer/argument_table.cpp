// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/argument_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <type_traits>
#include <utility>

#include "ladder/comm/backend_names.h"
#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/core/text.h"
#include "ladder/io/json.h"

namespace ladder {
namespace {

using Json = nlohmann::json;
using Written = nlohmann::ordered_json;
using Names = std::vector<std::string>;

// In the order of the enumerators.
constexpr const char* names_of(IntervalStrategy) { return "no|steps|epoch"; }
constexpr const char* names_of(SaveStrategy) { return "no|steps|epoch|best"; }
constexpr const char* names_of(OptimizerName) {
  return "adamw_torch_fused|adam|sgd|adagrad|rmsprop";
}
constexpr const char* names_of(SchedulerType) {
  return "linear|cosine|cosine_with_restarts|polynomial|constant|constant_with_warmup|"
         "inverse_sqrt|reduce_lr_on_plateau";
}
constexpr const char* names_of(Banner) { return "tutorial|v5"; }
constexpr const char* names_of(Sums) { return "fast|exact"; }

[[noreturn]] void refuse(const std::string& where, std::string_view expected, const Json& value,
                         std::string_view hint) {
  constexpr std::size_t kLongest = 80;
  const std::string text = value.is_string()
                               ? value.get<std::string>()
                               : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  throw UsageError::malformed(where, expected, text.substr(0, kLongest), hint);
}

void require_one_of(const std::string& where, const std::string& name, const Names& names) {
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  throw UsageError::unknown_name(where, name, names);
}

template <typename T>
constexpr bool kIsOptional = false;
template <typename T>
constexpr bool kIsOptional<std::optional<T>> = true;

template <typename T>
constexpr bool kIsFlag = std::is_same_v<T, bool> || std::is_same_v<T, std::optional<bool>>;

bool value_of(const std::string& where, const Json& value, bool) {
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_string()) refuse(where, "true or false", value, "write true or false");
  return parse_bool(where, value.get<std::string>());
}

double value_of(const std::string& where, const Json& value, double) {
  std::optional<double> number;
  if (value.is_number()) number = value.get<double>();
  if (value.is_string()) number = parse_number<double>(value.get<std::string>());
  if (!number || !std::isfinite(*number)) refuse(where, "a number", value, "such as 1e-3");
  return *number;
}

template <std::integral Number>
Number value_of(const std::string& where, const Json& value, Number) {
  std::optional<Number> number;
  const auto narrow = [&](auto whole) {
    if (std::in_range<Number>(whole)) number = static_cast<Number>(whole);
  };
  if (value.is_string()) number = parse_number<Number>(value.get<std::string>());
  if (value.is_number_unsigned()) {
    narrow(value.get<std::uint64_t>());
  } else if (value.is_number_integer()) {
    narrow(value.get<std::int64_t>());
  }
  if (number) return *number;
  refuse(where, std::is_unsigned_v<Number> ? "a whole number >= 0" : "a whole number", value,
         "such as 100");
}

template <typename Enum>
  requires std::is_enum_v<Enum>
Enum value_of(const std::string& where, const Json& value, Enum kind) {
  const Names names = split(names_of(kind), '|');
  if (!value.is_string()) {
    refuse(where, fmt::format("one of {}", fmt::join(names, ", ")), value, "");
  }
  const auto name = value.get<std::string>();
  if (std::is_same_v<Enum, OptimizerName> && name == "adamw_torch") return Enum{};
  require_one_of(where, name, names);
  return static_cast<Enum>(std::find(names.begin(), names.end(), name) - names.begin());
}

std::string value_of(const std::string& where, const Json& value, const std::string&) {
  if (!value.is_string()) refuse(where, "a text", value, "write it in quotes");
  return value.get<std::string>();
}

// A text with commas, or a list of texts.
Names value_of(const std::string& where, const Json& value, const Names&) {
  constexpr const char* kForm = "names, as a list or with commas between them";
  constexpr const char* kListHint = "such as \"csv,jsonl\"";
  Names names;
  if (value.is_string()) names = split(value.get<std::string>(), ',');
  if (!value.is_string() && !value.is_array()) refuse(where, kForm, value, kListHint);
  if (value.is_array()) {
    for (const auto& name : value) names.push_back(value_of(where, name, std::string()));
  }
  if (names == Names{""}) names.clear();
  if (std::find(names.begin(), names.end(), "") != names.end())
    refuse(where, kForm, value, kListHint);
  return names;
}

template <typename T>
void take(const std::string& where, const Json& value, T& target, const T& standard) {
  constexpr bool kHasUnset = !std::is_arithmetic_v<T> && !std::is_enum_v<T>;
  if (value.is_null() && (kHasUnset || kIsFlag<T>)) {
    target = standard;
  } else if constexpr (kIsOptional<T>) {
    if (value == "none") return target.reset();
    target = value_of(where, value, typename T::value_type{});
  } else {
    target = value_of(where, value, T{});
  }
}

template <typename T>
Written written(const T& value) {
  if constexpr (kIsOptional<T>) {
    return value ? Written(*value) : Written();
  } else if constexpr (std::is_enum_v<T>) {
    return split(names_of(value), '|').at(static_cast<std::size_t>(value));
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value.empty() ? Written() : Written(value);
  } else {
    return value;
  }
}

template <auto kField>
void read_field(TrainingArguments& arguments, const std::string& where, const Json& value) {
  const TrainingArguments standard;
  take(where, value, arguments.*kField, standard.*kField);
}

template <auto kField>
Written write_field(const TrainingArguments& arguments) {
  return written(arguments.*kField);
}

template <auto kField>
using FieldType = std::remove_cvref_t<decltype(std::declval<TrainingArguments>().*kField)>;

template <auto kField>
constexpr TrainingArgument row(Effect effect, std::string_view name, std::string_view form,
                               std::string_view help, NumberRange range = {}) {
  return {
      name, form, help, effect, kIsFlag<FieldType<kField>>, read_field<kField>, write_field<kField>,
      range};
}

constexpr NumberRange kNotNegative{.least = 0.0};
constexpr NumberRange kEpochsOrSteps{.least = 0.0, .most = kMostEpochs};
constexpr NumberRange kBelowOne{.least = 0.0, .most = 1.0, .below = true};
constexpr NumberRange kBatchSize{.least = 1.0, .most = kMostSamplesPerBatch};

template <auto kField>
constexpr TrainingArgument flag(Effect effect, std::string_view name, std::string_view help) {
  return row<kField>(effect, name, "true|false", help);
}

template <auto kField>
constexpr TrainingArgument choice(Effect effect, std::string_view name, std::string_view help) {
  return row<kField>(effect, name, names_of(FieldType<kField>{}), help);
}

constexpr const char* kObject = "a JSON object";
constexpr const char* kObjectHint = "such as {\"key\": 1}";

// An object, or its text.
Json object_from(const std::string& where, const Json& value) {
  const auto refuse_text = [&](const auto&...) { refuse(where, kObject, value, kObjectHint); };
  Json object = value.is_string()
                    ? parse_untrusted_json(value.get_ref<const std::string&>(), refuse_text)
                    : value;
  if (!object.is_object()) refuse(where, kObject, value, kObjectHint);
  return object;
}

using Settings = std::pair<std::string_view, bool AcceleratorConfig::*>;
constexpr Settings kSettings[] = {{"split_batches", &AcceleratorConfig::split_batches},
                                  {"dispatch_batches", &AcceleratorConfig::dispatch_batches},
                                  {"even_batches", &AcceleratorConfig::even_batches}};

// Settings of Python's class that have a single value here.
constexpr std::pair<std::string_view, std::string_view> kFixedSettings[] = {
    {"use_seedable_sampler", "true"},
    {"non_blocking", "false"},
    {"gradient_accumulation_kwargs", "null"},
    {"use_configured_state", "false"}};

void read_accelerator_config(TrainingArguments& arguments, const std::string& where,
                             const Json& value) {
  const AcceleratorConfig standard;
  arguments.accelerator_config = standard;
  if (value.is_null()) return;
  const Json object = object_from(where, value);
  for (const auto& [name, setting] : object.items()) {
    const std::string place = fmt::format("{}.{}", where, name);
    Names names;
    bool is_known = false;
    for (const auto& [known, field] : kSettings) {
      names.emplace_back(known);
      if (name != known) continue;
      take(place, setting, arguments.accelerator_config.*field, standard.*field);
      is_known = true;
    }
    for (const auto& [known, fixed] : kFixedSettings) {
      if (name != known) continue;
      if (text_of(setting) != text_of(Written::parse(fixed))) {
        refuse(place, fixed, setting, "no other value is supported: remove it");
      }
      is_known = true;
    }
    if (!is_known) require_one_of(where, name, names);
  }
}

Written write_accelerator_config(const TrainingArguments& arguments) {
  Written config;
  for (const auto& [name, field] : kSettings) config[name] = arguments.accelerator_config.*field;
  return config;
}

// As in Python, a text that looks like a number or a flag is one: YAML has only texts.
Json typed(const std::string& where, const Json& value) {
  if (value.is_structured()) {
    refuse(where, "a number, a flag or a text", value, "such as {\"num_cycles\": 2}");
  }
  if (!value.is_string()) return value;
  const auto text = value.get<std::string>();
  const auto number = parse_number<double>(text);
  if (text == "true" || text == "false") return text == "true";
  if (const auto whole = parse_number<std::int64_t>(text)) return *whole;
  return number && std::isfinite(*number) ? Json(*number) : value;
}

void read_scheduler_kwargs(TrainingArguments& arguments, const std::string& where,
                           const Json& value) {
  Json object = value.is_null() ? Json::object() : object_from(where, value);
  for (const auto& item : object.items()) {
    item.value() = typed(fmt::format("{}.{}", where, item.key()), item.value());
  }
  arguments.lr_scheduler_kwargs = object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Written write_scheduler_kwargs(const TrainingArguments& arguments) {
  return object_from("lr_scheduler_kwargs", arguments.lr_scheduler_kwargs);
}

// Python's is a path or a flag.
void read_resume(TrainingArguments& arguments, const std::string& where, const Json& value) {
  if (value.is_boolean()) {
    arguments.resume_from_checkpoint = value.get<bool>() ? "true" : "";
  } else {
    read_field<&TrainingArguments::resume_from_checkpoint>(arguments, where, value);
  }
  auto& resume = arguments.resume_from_checkpoint;
  const auto word = to_lower(resume);
  if (word == "true" || word == "false") resume = word == "true" ? word : "";
  if (resume != "true") require_path(where, resume);
}

void read_backend(TrainingArguments& arguments, const std::string& where, const Json& value) {
  std::string backend;
  take(where, value, backend, std::string());
  if (!backend.empty()) require_one_of(where, backend, backend_choices());
  arguments.ddp_backend = backend == "auto" ? "" : backend;
}

void read_report_to(TrainingArguments& arguments, const std::string& where, const Json& value) {
  Names trackers;
  take(where, value, trackers, Names{});
  for (const auto& name : trackers) {
    require_one_of(where, name, {"jsonl", "csv", "tensorboard", "all", "none"});
  }
  arguments.report_to = trackers == Names{"none"} ? Names{} : trackers;
}

constexpr std::string_view kBackendRow = "ddp_backend";  // with the backends of this program

using T = TrainingArguments;
using enum Effect;
constexpr TrainingArgument kRows[] = {
    {"output_dir", "FOLDER", "folder of checkpoints and results; empty in a file = write nothing",
     kFolder, false, read_field<&T::output_dir>,
     [](const T& arguments) -> Written { return arguments.output_dir; }},
    row<&T::run_name>(kOwn, "run_name", "NAME", "run name for trackers [last part of output_dir]"),
    {"report_to", "NAMES", "trackers: jsonl,csv,tensorboard, all or none", kOwn, false,
     read_report_to, write_field<&T::report_to>},

    row<&T::num_train_epochs>(kTraining, "num_train_epochs", "X", "training epochs",
                              kEpochsOrSteps),
    row<&T::max_steps>(kTraining, "max_steps", "N",
                       "optimizer steps, override the epochs; -1 = no limit"),
    row<&T::per_device_train_batch_size>(kTraining, "per_device_train_batch_size", "N",
                                         "training samples per process and batch", kBatchSize),
    row<&T::per_device_eval_batch_size>(kTogether, "per_device_eval_batch_size", "N",
                                        "evaluation samples per process and batch", kBatchSize),
    row<&T::gradient_accumulation_steps>(kWeights, "gradient_accumulation_steps", "N",
                                         "batches per optimizer step", {1.0, kMostBatchesPerStep}),

    choice<&T::optim>(kTraining, "optim",
                      "optimizer; adamw_torch is the same as adamw_torch_fused"),
    row<&T::learning_rate>(kOptimizer, "learning_rate", "X", "peak learning rate", kNotNegative),
    row<&T::weight_decay>(kOptimizer, "weight_decay", "X",
                          "weight decay, except for biases and LayerNorm", kNotNegative),
    row<&T::adam_beta1>(kOptimizer, "adam_beta1", "X", "beta1 of AdamW and Adam", kBelowOne),
    row<&T::adam_beta2>(kOptimizer, "adam_beta2", "X", "beta2 of AdamW and Adam", kBelowOne),
    row<&T::adam_epsilon>(kOptimizer, "adam_epsilon", "X", "epsilon of AdamW and Adam",
                          kNotNegative),
    row<&T::max_grad_norm>(kTraining, "max_grad_norm", "X",
                           "norm to clip gradients to; 0 = no clipping", kNotNegative),
    row<&T::label_smoothing_factor>(kWeights, "label_smoothing_factor", "X",
                                    "label smoothing, 0 to 1", {0.0, 1.0}),

    choice<&T::lr_scheduler_type>(kTraining, "lr_scheduler_type", "learning-rate schedule"),
    {"lr_scheduler_kwargs", "JSON", "settings of the schedule", kTraining, false,
     read_scheduler_kwargs, write_scheduler_kwargs},
    row<&T::warmup_steps>(kTraining, "warmup_steps", "X",
                          "warm-up steps; below 1: fraction of all steps", kEpochsOrSteps),
    row<&T::warmup_ratio>(kTraining, "warmup_ratio", "X", "deprecated: warmup_steps below 1",
                          kBelowOne),

    flag<&T::fp16>(kTraining, "fp16", "mixed precision in float16"),
    flag<&T::bf16>(kTraining, "bf16", "mixed precision in bfloat16"),
    flag<&T::tf32>(kTraining, "tf32", "TensorFloat-32 matrix products on a GPU"),

    choice<&T::logging_strategy>(kTogether, "logging_strategy", "when to log"),
    row<&T::logging_steps>(kTogether, "logging_steps", "X",
                           "steps between logs; below 1: fraction of all"),
    flag<&T::logging_first_step>(kTogether, "logging_first_step", "log of the first step"),
    flag<&T::logging_nan_inf_filter>(kTogether, "logging_nan_inf_filter",
                                     "no NaN and inf in logged losses"),
    flag<&T::disable_tqdm>(kOwn, "disable_tqdm", "no progress bar"),
    choice<&T::banner>(kOwn, "banner", "form of the first lines: tutorial, or transformers 5"),

    choice<&T::eval_strategy>(kTogether, "eval_strategy", "when to evaluate"),
    row<&T::eval_steps>(kTogether, "eval_steps", "X", "steps between evaluations [logging_steps]"),
    row<&T::eval_delay>(kTogether, "eval_delay", "X", "epochs or steps before the first evaluation",
                        kEpochsOrSteps),
    flag<&T::eval_on_start>(kTogether, "eval_on_start", "evaluation before the first step"),
    flag<&T::prediction_loss_only>(kTogether, "prediction_loss_only",
                                   "evaluation of the loss only"),

    choice<&T::save_strategy>(kTogether, "save_strategy", "when to write a checkpoint"),
    row<&T::save_steps>(kTogether, "save_steps", "X",
                        "steps between checkpoints; below 1: fraction of all"),
    row<&T::save_total_limit>(kTogether, "save_total_limit", "N", "checkpoints to keep [all]",
                              {1.0}),
    flag<&T::save_only_model>(kTraining, "save_only_model", "checkpoints that cannot be resumed"),
    flag<&T::overwrite_output_dir>(kOwn, "overwrite_output_dir",
                                   "remove checkpoints of another run from output_dir"),
    flag<&T::load_best_model_at_end>(kTogether, "load_best_model_at_end",
                                     "weights of the best checkpoint after training"),
    row<&T::metric_for_best_model>(kTogether, "metric_for_best_model", "NAME",
                                   "metric of the best checkpoint, such as accuracy [loss]"),
    flag<&T::greater_is_better>(kTogether, "greater_is_better",
                                "direction of that metric [true unless it ends in loss]"),
    {"resume_from_checkpoint", "PATH|auto",
     "checkpoint to resume from [the last in output_dir]; auto: the newest whole one, if any",
     kFolder, true, read_resume, write_field<&T::resume_from_checkpoint>},
    flag<&T::ignore_data_skip>(kTogether, "ignore_data_skip",
                               "resume from the first batch of the epoch"),
    flag<&T::restore_callback_states_from_checkpoint>(
        kTogether, "restore_callback_states_from_checkpoint", "resume the state of callbacks"),

    row<&T::seed>(kTraining, "seed", "N", "seed for weights, shuffling, dropout, augmentation"),
    row<&T::data_seed>(kTraining, "data_seed", "N", "seed for shuffling [seed]"),
    flag<&T::full_determinism>(kTraining, "full_determinism", "no nondeterministic operations"),

    row<&T::dataloader_num_workers>(kOwn, "dataloader_num_workers", "N",
                                    "data-loader threads; 0 = none", {0.0, kMostWorkers}),
    flag<&T::dataloader_pin_memory>(kOwn, "dataloader_pin_memory",
                                    "page-locked batches, for copies to a GPU"),
    flag<&T::dataloader_drop_last>(kTraining, "dataloader_drop_last",
                                   "omission of the incomplete last batch of an epoch"),
    row<&T::label_names>(kTraining, "label_names", "NAMES", "inputs that are labels"),

    {kBackendRow, "", "", kOwn, false, read_backend, write_field<&T::ddp_backend>},
    flag<&T::ddp_find_unused_parameters>(kTraining, "ddp_find_unused_parameters",
                                         "parameters without gradient allowed"),
    row<&T::ddp_bucket_cap_mb>(kTraining, "ddp_bucket_cap_mb", "N",
                               "gradient bucket size in MiB [25]", {1.0, 1e6}),
    flag<&T::ddp_broadcast_buffers>(kTraining, "ddp_broadcast_buffers",
                                    "buffers of rank 0 on all ranks"),
    row<&T::ddp_timeout>(kOwn, "ddp_timeout", "N", "timeout of collectives in seconds",
                         {1.0, 604'800.0}),
    {"accelerator_config", "JSON", "split_batches, even_batches, dispatch_batches", kTraining,
     false, read_accelerator_config, write_accelerator_config},
    flag<&T::use_cpu>(kOwn, "use_cpu", "CPU even if GPUs are present"),
    choice<&T::sums>(kWeights, "sums",
                     "sums of gradients; exact: the same weights on any number of ranks"),
    row<&T::micro_batch>(kWeights, "micro_batch", "N", "samples per micro-batch, with exact sums",
                         kBatchSize),

    flag<&T::do_train>(kTogether, "do_train", "training"),
    flag<&T::do_eval>(kTogether, "do_eval", "evaluation at the end"),
    flag<&T::do_predict>(kTogether, "do_predict", "prediction at the end, with its metrics"),

    flag<&T::fast_dev_run>(kTraining, "fast_dev_run", "one training and one evaluation batch"),
    row<&T::limit_train_batches>(kTraining, "limit_train_batches", "X",
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

template <typename Row>
const Row* find_row(std::span<const Row> table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Row::name);
  return found == table.end() ? nullptr : &*found;
}

}  // namespace

std::span<const TrainingArgument> training_argument_table() {
  static const auto names = fmt::format("{}", fmt::join(backend_names() | std::views::keys, "|"));
  static const auto help = fmt::format("communication backend [{}]", automatic_backends());
  static const auto rows = [] {
    auto all = std::to_array(kRows);
    auto& row = *std::ranges::find(all, kBackendRow, &TrainingArgument::name);
    row.form = names;
    row.help = help;
    return all;
  }();
  return rows;
}

const TrainingArgument* find_argument(std::string_view name) {
  return find_row(training_argument_table(), name);
}

std::string text_of(const Written& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  if (!value.is_array()) return value.dump(-1, ' ', false, Written::error_handler_t::replace);
  Names parts;
  for (const auto& part : value) parts.push_back(text_of(part));
  return fmt::format("{}", fmt::join(parts, ","));
}

std::span<const UnsupportedArgument> unsupported_argument_table() { return kUnsupported; }

const UnsupportedArgument* find_unsupported_argument(std::string_view name) {
  return find_row(unsupported_argument_table(), name);
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
