// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/unsupported_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ladder/core/error.h"
#include "ladder/core/text.h"
#include "ladder/trainer/argument_table.h"

namespace ladder {
namespace {

constexpr const char* kThreads = "workers are threads of this process";
constexpr const char* kNoHub = "there is no hub";
constexpr const char* kNoTokens = "there are no tokens";
constexpr const char* kMainProcess = "the main process logs, all processes warn";

// [], {} and "" stand for the default, as null does.
bool is_default(const UnsupportedArgument& argument, std::string_view where,
                const nlohmann::json& value) {
  if (value.empty() || value == "") return true;
  const auto standard = nlohmann::json::parse(argument.default_json);
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
    {"trackio_space_id"},
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
    {"save_safetensors", "true"},
    {"skip_memory_metrics", "true"},
    {"train_sampling_strategy", "\"random\""},
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
    {"length_column_name", "\"length\"", kNoTokens},
    {"local_rank", "-1", "the launcher's LOCAL_RANK counts"},
    {"log_level", "\"passive\"", kMainProcess},
    {"log_level_replica", "\"warning\"", kMainProcess},
    {"log_on_each_node", "true", kMainProcess},
    {"logging_dir", "null", "trackers write into output_dir"},
    {"project", "\"huggingface\"", "no tracker here has projects"},
    {"remove_unused_columns", "true", "data_collator defines the contents of a batch"},
    {"use_cache", "false", "no model here has a cache"}};

}  // namespace

std::span<const UnsupportedArgument> unsupported_argument_table() { return kUnsupported; }

const UnsupportedArgument* find_unsupported_argument(std::string_view name) {
  const auto table = unsupported_argument_table();
  const auto found = std::ranges::find(table, name, &UnsupportedArgument::name);
  return found == table.end() ? nullptr : &*found;
}

std::optional<std::string> accept_default(const UnsupportedArgument& argument,
                                          std::string_view where, const nlohmann::json& value) {
  if (is_default(argument, where, value)) return std::nullopt;
  if (argument.reason.empty()) {
    throw UsageError::conflict(where, "belongs to transformers and is not supported here",
                               "remove it");
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
