// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/argument_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/checkpoint/saved_json.h"
#include "ladder/core/error.h"

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

Names split(std::string_view text, char separator) {
  Names parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

[[noreturn]] void refuse(const std::string& where, std::string_view expected, const Json& value,
                         std::string_view hint = "") {
  constexpr std::size_t kLongest = 80;
  const std::string text = value.is_string()
                               ? value.get<std::string>()
                               : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  throw UsageError::malformed(where, expected, text.substr(0, kLongest), hint);
}

template <typename Number>
std::optional<Number> number_in(const std::string& text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc{} && stopped == end ? std::optional(number) : std::nullopt;
}

template <typename T>
constexpr bool kIsOptional = false;
template <typename T>
constexpr bool kIsOptional<std::optional<T>> = true;

template <typename T>
constexpr bool kIsFlag = std::is_same_v<T, bool> || std::is_same_v<T, std::optional<bool>>;

bool value_of(const std::string& where, const Json& value, bool) {
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_string()) refuse(where, "true or false", value);
  return parse_bool(where, value.get<std::string>());
}

double value_of(const std::string& where, const Json& value, double) {
  std::optional<double> number;
  if (value.is_number()) number = value.get<double>();
  if (value.is_string()) number = number_in<double>(value.get<std::string>());
  if (!number || !std::isfinite(*number)) refuse(where, "a number", value);
  return *number;
}

template <std::integral Number>
Number value_of(const std::string& where, const Json& value, Number) {
  std::optional<Number> number;
  if (value.is_string()) number = number_in<Number>(value.get<std::string>());
  if (value.is_number_unsigned()) {
    const auto whole = value.get<std::uint64_t>();
    if (std::in_range<Number>(whole)) number = static_cast<Number>(whole);
  } else if (value.is_number_integer()) {
    const auto whole = value.get<std::int64_t>();
    if (std::in_range<Number>(whole)) number = static_cast<Number>(whole);
  }
  if (!number) {
    refuse(where, std::is_unsigned_v<Number> ? "a whole number >= 0" : "a whole number", value);
  }
  return *number;
}

template <typename Enum>
  requires std::is_enum_v<Enum>
Enum value_of(const std::string& where, const Json& value, Enum kind) {
  const Names names = split(names_of(kind), '|');
  if (!value.is_string()) refuse(where, fmt::format("one of {}", fmt::join(names, ", ")), value);
  const auto name = value.get<std::string>();
  if (std::is_same_v<Enum, OptimizerName> && name == "adamw_torch") return Enum{};
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw UsageError::unknown_name(where, name, names);
  return static_cast<Enum>(found - names.begin());
}

std::string value_of(const std::string& where, const Json& value, const std::string&) {
  if (!value.is_string()) refuse(where, "a text", value);
  return value.get<std::string>();
}

// A text, or a list of such.
Names value_of(const std::string& where, const Json& value, const Names&) {
  constexpr const char* kForm = "names, as a list or with commas between them";
  Names names;
  if (value.is_string()) names = split(value.get<std::string>(), ',');
  if (!value.is_string() && !value.is_array()) refuse(where, kForm, value);
  if (value.is_array()) {
    for (const auto& name : value) names.push_back(value_of(where, name, std::string()));
  }
  if (names == Names{""}) names.clear();
  if (std::find(names.begin(), names.end(), "") != names.end()) refuse(where, kForm, value);
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
constexpr TrainingArgument row(std::string_view name, std::string_view form,
                               std::string_view help) {
  return {name, form, help, kIsFlag<FieldType<kField>>, read_field<kField>, write_field<kField>};
}

template <auto kField>
constexpr TrainingArgument flag(std::string_view name, std::string_view help) {
  return row<kField>(name, "true|false", help);
}

template <auto kField>
constexpr TrainingArgument choice(std::string_view name, std::string_view help) {
  return row<kField>(name, names_of(FieldType<kField>{}), help);
}

constexpr const char* kObject = "a JSON object, such as {\"key\": 1}";

// An object, or its text.
Json object_from(const std::string& where, const Json& value) {
  Json object = value;
  if (value.is_string()) {
    try {
      object = parse_saved_json(value.get<std::string>(), where);
    } catch (const DataError&) {
      refuse(where, kObject, value);
    }
  }
  if (!object.is_object()) refuse(where, kObject, value);
  return object;
}

// Settings of Python's class that have a single value here.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kFixedSettings = {
    {{"use_seedable_sampler", "true"},
     {"non_blocking", "false"},
     {"gradient_accumulation_kwargs", "null"},
     {"use_configured_state", "false"}}};

void take_setting(const std::string& where, const std::string& name, const Json& value,
                  AcceleratorConfig& config) {
  const std::string place = fmt::format("{}.{}", where, name);
  constexpr AcceleratorConfig kStandard;
  if (name == "split_batches")
    return take(place, value, config.split_batches, kStandard.split_batches);
  if (name == "dispatch_batches")
    return take(place, value, config.dispatch_batches, kStandard.dispatch_batches);
  if (name == "even_batches")
    return take(place, value, config.even_batches, kStandard.even_batches);
  Names names = {"split_batches", "dispatch_batches", "even_batches"};
  for (const auto& [fixed, standard] : kFixedSettings) {
    if (name == fixed && text_of(value) == text_of(Written::parse(standard))) return;
    if (name == fixed) refuse(place, standard, value, "nothing else is supported: leave it out");
  }
  throw UsageError::unknown_name(where, name, names);
}

void read_accelerator_config(TrainingArguments& arguments, const std::string& where,
                             const Json& value) {
  arguments.accelerator_config = {};
  if (value.is_null()) return;
  const Json object = object_from(where, value);
  for (const auto& [name, setting] : object.items()) {
    take_setting(where, name, setting, arguments.accelerator_config);
  }
}

Written write_accelerator_config(const TrainingArguments& arguments) {
  const auto& config = arguments.accelerator_config;
  return {{"split_batches", config.split_batches},
          {"dispatch_batches", config.dispatch_batches},
          {"even_batches", config.even_batches}};
}

// As in Python, a text that looks like a number or a flag is one: YAML has only texts.
Json typed(const std::string& where, const Json& value) {
  if (value.is_structured()) refuse(where, "a number, a flag or a text", value);
  if (!value.is_string()) return value;
  const auto text = value.get<std::string>();
  if (text == "true" || text == "false") return text == "true";
  if (const auto whole = number_in<std::int64_t>(text)) return *whole;
  if (const auto number = number_in<double>(text); number && std::isfinite(*number)) return *number;
  return value;
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

void read_output_dir(TrainingArguments& arguments, const std::string& where, const Json& value) {
  take(where, value, arguments.output_dir, TrainingArguments{}.output_dir);
}

Written write_output_dir(const TrainingArguments& arguments) { return arguments.output_dir; }

// Python's is a path or a flag.
void read_resume(TrainingArguments& arguments, const std::string& where, const Json& value) {
  if (value.is_boolean()) {
    arguments.resume_from_checkpoint = value.get<bool>() ? "true" : "";
  } else {
    read_field<&TrainingArguments::resume_from_checkpoint>(arguments, where, value);
  }
  auto& resume = arguments.resume_from_checkpoint;
  if (resume == "True") resume = "true";
  if (resume == "false" || resume == "False") resume.clear();
}

void read_backend(TrainingArguments& arguments, const std::string& where, const Json& value) {
  const Names names = {"gloo", "nccl", "shm", "auto"};
  std::string backend;
  take(where, value, backend, std::string());
  if (!backend.empty() && std::find(names.begin(), names.end(), backend) == names.end()) {
    throw UsageError::unknown_name(where, backend, names);
  }
  arguments.ddp_backend = backend == "auto" ? "" : backend;
}

void read_report_to(TrainingArguments& arguments, const std::string& where, const Json& value) {
  const Names names = {"jsonl", "csv", "tensorboard", "all", "none"};
  Names trackers;
  take(where, value, trackers, Names{});
  for (const auto& name : trackers) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw UsageError::unknown_name(where, name, names);
    }
  }
  arguments.report_to = trackers == Names{"none"} ? Names{} : trackers;
}

using T = TrainingArguments;
constexpr TrainingArgument kRows[] = {
    {"output_dir", "FOLDER", "of checkpoints and results; empty = write nothing", false,
     read_output_dir, write_output_dir},
    row<&T::run_name>("run_name", "NAME", "name of the run for trackers [as output_dir]"),
    {"report_to", "NAMES", "trackers: jsonl,csv,tensorboard, all or none", false, read_report_to,
     write_field<&T::report_to>},

    row<&T::num_train_epochs>("num_train_epochs", "X", "passes over the training set"),
    row<&T::max_steps>("max_steps", "N", "wins over the epochs; -1 = none"),
    row<&T::per_device_train_batch_size>("per_device_train_batch_size", "N",
                                         "samples of a process and batch"),
    row<&T::per_device_eval_batch_size>("per_device_eval_batch_size", "N",
                                        "the same for evaluation"),
    row<&T::gradient_accumulation_steps>("gradient_accumulation_steps", "N", "batches a step"),

    choice<&T::optim>("optim", "optimizer; adamw_torch is adamw_torch_fused"),
    row<&T::learning_rate>("learning_rate", "X", "at its highest"),
    row<&T::weight_decay>("weight_decay", "X", "not of biases and of LayerNorm"),
    row<&T::adam_beta1>("adam_beta1", "X", "how long AdamW and Adam remember gradients"),
    row<&T::adam_beta2>("adam_beta2", "X", "and their squares"),
    row<&T::adam_epsilon>("adam_epsilon", "X", "added to the divisor of AdamW and Adam"),
    row<&T::max_grad_norm>("max_grad_norm", "X", "clip gradients to this norm; 0 = do not"),
    row<&T::label_smoothing_factor>("label_smoothing_factor", "X",
                                    "part of each label that goes to all classes"),

    choice<&T::lr_scheduler_type>("lr_scheduler_type", "learning rate over time"),
    {"lr_scheduler_kwargs", "JSON", "further numbers for it", false, read_scheduler_kwargs,
     write_scheduler_kwargs},
    row<&T::warmup_steps>("warmup_steps", "X", "steps to reach it; below 1: part of all steps"),
    row<&T::warmup_ratio>("warmup_ratio", "X", "old name of warmup_steps below 1"),

    flag<&T::fp16>("fp16", "mixed precision in float16"),
    flag<&T::bf16>("bf16", "mixed precision in bfloat16"),
    flag<&T::tf32>("tf32", "on a GPU: matrix products in 19 bits"),

    choice<&T::logging_strategy>("logging_strategy", "when to log"),
    row<&T::logging_steps>("logging_steps", "X", "every so many; below 1: part of all steps"),
    flag<&T::logging_first_step>("logging_first_step", "log the first step too"),
    flag<&T::logging_nan_inf_filter>("logging_nan_inf_filter",
                                     "leave losses that are not finite out of the log"),
    flag<&T::disable_tqdm>("disable_tqdm", "no progress bar"),
    choice<&T::banner>("banner", "form of the lines at the start"),

    choice<&T::eval_strategy>("eval_strategy", "when to evaluate"),
    row<&T::eval_steps>("eval_steps", "X", "evaluation interval in steps [logging_steps]"),
    row<&T::eval_delay>("eval_delay", "X", "epochs or steps before the first evaluation"),
    flag<&T::eval_on_start>("eval_on_start", "evaluate before training too"),
    flag<&T::prediction_loss_only>("prediction_loss_only", "evaluate the loss alone"),

    choice<&T::save_strategy>("save_strategy", "when to write a checkpoint"),
    row<&T::save_steps>("save_steps", "X", "every so many; below 1: part of all steps"),
    row<&T::save_total_limit>("save_total_limit", "N", "checkpoints to keep [all]"),
    flag<&T::save_only_model>("save_only_model", "no resume from such a checkpoint"),
    flag<&T::load_best_model_at_end>("load_best_model_at_end", "end with the best checkpoint"),
    row<&T::metric_for_best_model>("metric_for_best_model", "NAME",
                                   "what makes it the best, such as accuracy [loss]"),
    flag<&T::greater_is_better>("greater_is_better", "of that metric [by its name]"),
    {"resume_from_checkpoint", "PATH", "checkpoint to resume from [the last in output_dir]", true,
     read_resume, write_field<&T::resume_from_checkpoint>},
    flag<&T::ignore_data_skip>("ignore_data_skip", "resume with the first batch of the epoch"),
    flag<&T::restore_callback_states_from_checkpoint>("restore_callback_states_from_checkpoint",
                                                      "resume callbacks too"),

    row<&T::seed>("seed", "N", "of weights, order, dropout and augmentation"),
    row<&T::data_seed>("data_seed", "N", "seed for shuffling alone [seed]"),
    flag<&T::full_determinism>("full_determinism", "refuse what may differ from run to run"),

    row<&T::dataloader_num_workers>("dataloader_num_workers", "N",
                                    "threads that prepare batches ahead"),
    flag<&T::dataloader_pin_memory>("dataloader_pin_memory",
                                    "page-locked batches, for copies to a GPU"),
    flag<&T::dataloader_drop_last>("dataloader_drop_last", "leave a short last batch out"),
    row<&T::label_names>("label_names", "NAMES", "which inputs are labels"),

    {"ddp_backend", "gloo|nccl|shm",
     "who carries the gradients [nccl with a GPU a rank, shm on one machine]", false, read_backend,
     write_field<&T::ddp_backend>},
    flag<&T::ddp_find_unused_parameters>("ddp_find_unused_parameters",
                                         "some parameters may get no gradient"),
    row<&T::ddp_bucket_cap_mb>("ddp_bucket_cap_mb", "N", "size of a bucket of gradients [25]"),
    flag<&T::ddp_broadcast_buffers>("ddp_broadcast_buffers", "all ranks use those of rank 0"),
    row<&T::ddp_timeout>("ddp_timeout", "N", "seconds that a rank waits for the others"),
    {"accelerator_config", "JSON", "split_batches, even_batches, dispatch_batches", false,
     read_accelerator_config, write_accelerator_config},
    flag<&T::use_cpu>("use_cpu", "the CPU, although there are GPUs"),

    flag<&T::do_train>("do_train", "train"),
    flag<&T::do_eval>("do_eval", "evaluate at the end"),
    flag<&T::do_predict>("do_predict", "show and write the metrics of a prediction"),

    flag<&T::fast_dev_run>("fast_dev_run", "a batch of each kind, to try things out"),
    row<&T::limit_train_batches>("limit_train_batches", "X",
                                 "so many an epoch; up to 1: this part"),
};

}  // namespace

std::span<const TrainingArgument> training_argument_table() { return kRows; }

std::string text_of(const Written& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  if (!value.is_array()) return value.dump(-1, ' ', false, Written::error_handler_t::replace);
  Names parts;
  for (const auto& part : value) parts.push_back(text_of(part));
  return fmt::format("{}", fmt::join(parts, ","));
}

}  // namespace ladder
