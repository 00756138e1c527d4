// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/unsupported_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/core/error.h"
#include "ladder/trainer/argument_table.h"

namespace ladder {
namespace {

constexpr const char* kThreads = "workers are threads of this process";
constexpr const char* kNoHub = "nothing is pushed to a hub";
constexpr const char* kNoTokens = "there are no tokens";
constexpr const char* kMainProcess = "the main process speaks, warnings come from all";

std::string in_lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return text;
}

// [] and {} say as little as null.
bool says_nothing(const nlohmann::json& value) {
  return value.empty() || (value.is_string() && value.get_ref<const std::string&>().empty());
}

bool is_standard(const UnsupportedArgument& argument, std::string_view where,
                 const nlohmann::json& value) {
  if (says_nothing(value)) return true;
  const auto standard = nlohmann::json::parse(argument.standard);
  if (standard.is_boolean() && value.is_string()) {
    return parse_bool(where, value.get<std::string>()) == standard.get<bool>();
  }
  return in_lower_case(text_of(value)) == in_lower_case(text_of(standard));
}

constexpr UnsupportedArgument kRows[] = {
    {"auto_find_batch_size", "false", ""},
    {"average_tokens_across_devices", "true", kNoTokens},
    {"batch_eval_metrics", "false", ""},
    {"bf16_full_eval", "false", ""},
    {"dataloader_in_order", "true", ""},
    {"dataloader_multiprocessing_context", "null", kThreads},
    {"dataloader_persistent_workers", "false", kThreads},
    {"dataloader_prefetch_factor", "null", "the loader chooses how far it works ahead"},
    {"ddp_static_graph", "null", ""},
    {"debug", "\"\"", ""},
    {"deepspeed", "null", ""},
    {"enable_jit_checkpoint", "false", ""},
    {"eval_accumulation_steps", "null", ""},
    {"eval_do_concat_batches", "true", ""},
    {"eval_use_gather_object", "false", ""},
    {"fp16_full_eval", "false", ""},
    {"fsdp", "null", ""},
    {"fsdp_config", "null", ""},
    {"gradient_checkpointing", "false", ""},
    {"gradient_checkpointing_kwargs", "null", ""},
    {"group_by_length", "false", ""},
    {"hub_always_push", "false", kNoHub},
    {"hub_model_id", "null", kNoHub},
    {"hub_private_repo", "null", kNoHub},
    {"hub_revision", "null", kNoHub},
    {"hub_strategy", "\"every_save\"", kNoHub},
    {"hub_token", "null", kNoHub},
    {"include_for_metrics", "[]", ""},
    {"include_num_input_tokens_seen", "\"no\"", ""},
    {"length_column_name", "\"length\"", kNoTokens},
    {"liger_kernel_config", "null", ""},
    {"local_rank", "-1", "the launcher's LOCAL_RANK counts"},
    {"log_level", "\"passive\"", kMainProcess},
    {"log_level_replica", "\"warning\"", kMainProcess},
    {"log_on_each_node", "true", kMainProcess},
    {"logging_dir", "null", "trackers write into output_dir"},
    {"neftune_noise_alpha", "null", ""},
    {"optim_args", "null", ""},
    {"optim_target_modules", "null", ""},
    {"overwrite_output_dir", "false", "a folder that holds something is written to anyway"},
    {"parallelism_config", "null", ""},
    {"project", "\"huggingface\"", "no tracker here has projects"},
    {"push_to_hub", "false", ""},
    {"remove_unused_columns", "true", "the collator says what a batch holds"},
    {"save_on_each_node", "false", ""},
    {"save_safetensors", "true", ""},
    {"skip_memory_metrics", "true", ""},
    {"torch_compile", "false", ""},
    {"torch_compile_backend", "null", ""},
    {"torch_compile_mode", "null", ""},
    {"torch_empty_cache_steps", "null", ""},
    {"trackio_bucket_id", "null", ""},
    {"trackio_space_id", "null", ""},
    {"trackio_static_space_id", "null", ""},
    {"train_sampling_strategy", "\"random\"", ""},
    {"use_cache", "false", "there is nothing to cache between passes"},
    {"use_liger_kernel", "false", ""},
};

}  // namespace

std::span<const UnsupportedArgument> foreign_argument_table() { return kRows; }

const UnsupportedArgument* find_foreign_argument(std::string_view name) {
  const auto table = foreign_argument_table();
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const auto& argument) { return argument.name == name; });
  return found == table.end() ? nullptr : &*found;
}

std::optional<std::string> accept_default(const UnsupportedArgument& argument,
                                          std::string_view where, const nlohmann::json& value) {
  if (is_standard(argument, where, value)) return std::nullopt;
  if (argument.reason.empty()) {
    throw UsageError::conflict(where, "belongs to transformers and is not supported here",
                               "leave it out");
  }
  return fmt::format("{}: accepted, without effect: {}", argument.name, argument.reason);
}

std::span<const DeprecatedName> old_argument_names() {
  static constexpr DeprecatedName kNames[] = {{"evaluation_strategy", "eval_strategy"},
                                              {"no_cuda", "use_cpu"}};
  return kNames;
}

std::string note_of(const DeprecatedName& name) {
  return fmt::format("{}: old name of {}", name.old, name.now);
}

}  // namespace ladder
