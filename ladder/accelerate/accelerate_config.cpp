// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/accelerate_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/core/text.h"
#include "ladder/io/yaml.h"
#include "ladder/launch/launch_variables.h"

namespace ladder {
namespace {

using C = AccelerateConfig;
using enum Effect;

constexpr double kMaxProcesses = kLargestWorldSize;
constexpr const char* kSteps = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";

void read_precision(const GivenValue& given, C& config) {
  if (!given.value.is_string()) given.refuse("no, fp16 or bf16", "no is full precision");
  config.mixed_precision = parse_mixed_precision(given.where, given.value.get<std::string>());
}

// Of old files.
void read_fp16(const GivenValue& given, C& config) {
  bool fp16 = false;
  read_value(given, fp16);
  if (fp16) config.mixed_precision = Precision::kFp16;
}

void read_type(const GivenValue& given, C& config) {
  if (to_lower(text_of(given.value)) == "no") {
    config.distributed_type = DistributedType::kNo;
  } else {
    read_value(given, config.distributed_type);
  }
}

void read_gpu_ids(const GivenValue& given, C& config) {
  config.gpu_ids = given.value.is_string() ? given.value.get<std::string>() : "";
  const auto& ids = config.gpu_ids;
  if (ids == "all" || (!ids.empty() && ids.find_first_not_of("0123456789, ") == ids.npos)) return;
  given.refuse("all, or numbers such as 0,1", "write the file again: accelerate config");
}

void read_num_processes(const GivenValue& given, C& config) {
  if (given.value != "-1") read_value(given, config.num_processes);
}

// Of a key whose only value is `expected`, in upper or lower case.
void require_only(const GivenValue& given, const char* expected, const char* hint) {
  const bool is_it =
      given.value.is_string() && to_lower(text_of(given.value)) == to_lower(expected);
  if (!is_it) given.refuse(expected, hint);
}
void check_environment(const GivenValue& given, C& /*config*/) {
  require_only(given, "LOCAL_MACHINE",
               given.value == "AMAZON_SAGEMAKER"
                   ? "SageMaker starts Python scripts; write the file again: accelerate config"
                   : "write the file again: accelerate config");
}
void check_dynamo_backend(const GivenValue& given, C& /*config*/) {
  require_only(given, "NO", "a C++ model is compiled already; remove it");
}

// A section for another engine.
void check_section(const std::string& where, const nlohmann::json& value) {
  if (value.empty() || value == "") return;
  throw UsageError::conflict(
      where,
      value.is_object() ? fmt::format("not supported, and holds {}", shortened(value.begin().key()))
                        : "not supported, and not empty",
      "empty it or remove it; plain data parallel training needs none of it");
}
void check_tpu(const GivenValue& given, C& /*config*/) {
  bool is_on = false;
  read_value(given, is_on);
  if (is_on) check_section(given.where, given.value);
}

// Python accepts the key with and without the prefix.
void check_dynamo_config(const GivenValue& given, C& config) {
  if (!given.value.is_object()) return check_section(given.where, given.value);
  for (const auto& [key, value] : given.value.items()) {
    if (key != "dynamo_backend" && key != "backend") continue;
    check_dynamo_backend({given.row, given.where + "." + key, value, given.standard}, config);
  }
}

WrittenJson write_nothing(const OptionColumns& /*row*/, const C& /*config*/) { return nullptr; }

// A key that sets nothing.
constexpr Option<C> other(const char* name, ReadOption<C> read, const char* variable = nullptr) {
  return option<C>(kOwn, name, "true|false", "", read, write_nothing, {.variable = variable});
}

// The keys of a file, and their variables.
constexpr Option<C> kKeys[] = {
    option<&C::mixed_precision>(kTogether, "mixed_precision", "no|bf16|fp16", "precision",
                                read_precision, {.variable = "ACCELERATE_MIXED_PRECISION"}),
    other("fp16", read_fp16),
    option<&C::use_cpu>(kOwn, "use_cpu", "true|false", "use the CPU even if GPUs are present",
                        {.variable = "ACCELERATE_USE_CPU"}),
    option<&C::debug>(kTogether, "debug", "true|false", "check shapes before collectives",
                      {.variable = "ACCELERATE_DEBUG_MODE"}),
    option<&C::cpu_affinity>(kOwn, "enable_cpu_affinity", "true|false", "without effect",
                             {.variable = "ACCELERATE_CPU_AFFINITY"}),
    option<&C::distributed_type>(kOwn, "distributed_type", "NO|MULTI_CPU|MULTI_GPU",
                                 "kind of processes", read_type),
    option<&C::num_processes>(kOwn, "num_processes", "N", "processes of all machines",
                              read_num_processes, {1.0, kMaxProcesses}),
    option<&C::num_machines>(kOwn, "num_machines", "N", "number of machines", {1.0, kMaxProcesses}),
    option<&C::machine_rank>(kOwn, "machine_rank", "N", "number of this machine, from 0",
                             {0.0, kMaxProcesses - 1.0}),
    option<&C::main_process_ip>(kOwn, "main_process_ip", "HOST", "address of machine 0"),
    option<&C::main_process_port>(kOwn, "main_process_port", "N", "its port; 0 picks a free one",
                                  {0.0, 65535.0}),
    option<&C::gpu_ids>(kOwn, "gpu_ids", "IDS", "all, or numbers", read_gpu_ids),
    other("compute_environment", check_environment),
    other("dynamo_backend", check_dynamo_backend, "ACCELERATE_DYNAMO_BACKEND"),
    other("dynamo_config", check_dynamo_config),
    other("tpu_use_cluster", check_tpu),
};
// What has only a variable.
constexpr Option<C> kVariables[] = {
    option<&C::gradient_accumulation_steps>(
        kTogether, "gradient_accumulation_steps", "N", "batches per optimizer step",
        {.least = 1.0, .most = kMaxBatchesPerStep, .variable = kSteps}),
    option<&C::device>(kOwn, "device", "DEVICE", "device, such as cuda:1",
                       {.variable = "ACCELERATE_TORCH_DEVICE"}),
    option<&C::fork_launched>(kOwn, "fork_launched", "true|false", "started by notebook_launcher",
                              {.variable = "FORK_LAUNCHED"}),
};
// Of other engines.
constexpr std::string_view kSections[] = {
    "command_file", "commands",           "deepspeed_config", "fp8_config",
    "fsdp_config",  "megatron_lm_config", "mpirun_config",    "parallelism_config",
    "tpu_env",      "tpu_name",           "tpu_vm",           "tpu_zone"};
constexpr std::string_view kIgnored[] = {"downcast_bf16", "main_training_function", "rdzv_backend",
                                         "same_network", "tpu_use_sudo"};

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

UsageError unknown_key(const YamlNode& root, const std::string& where, const YamlNode& entry,
                       const std::string& name) {
  for (const auto& other : root.children) {
    const auto file = file_with_key(other.key);
    if (file.empty() || find_option(kKeys, other.key) != nullptr) continue;
    return UsageError::conflict(fmt::format("{}:{}: {}", name, other.line, other.key),
                                fmt::format("the file holds {}", file),
                                fmt::format("accelerate config --config_file {}", name));
  }
  const std::string nearest = nearest_name(entry.key.substr(0, 80), option_names(kKeys));
  return UsageError::conflict(
      where, "accelerate's configuration has no such key",
      nearest.empty() ? "remove the line" : fmt::format("did you mean {}?", nearest));
}

void read_keys(const YamlNode& root, const std::string& name, C& config) {
  const auto has = [&](const char* key) {
    return std::ranges::find(root.children, key, &YamlNode::key) != root.children.end();
  };
  for (const bool is_type : {true, false}) {  // what a key means follows from the type
    for (const auto& entry : root.children) {
      if ((entry.key == "distributed_type") != is_type) continue;
      const auto where = fmt::format("{}:{}: {}", name, entry.line, shortened(entry.key));
      const auto* const row = find_option(kKeys, entry.key);
      const bool is_section = contains(kSections, entry.key);
      const bool is_ignored = contains(kIgnored, entry.key);
      if (row == nullptr && !is_section && !is_ignored) {
        throw unknown_key(root, where, entry, name);
      }
      if (is_section) check_section(where, json_of(entry));
      const bool is_old = entry.key == "fp16" && has("mixed_precision");
      if (row == nullptr || is_old || entry.kind == YamlNode::Kind::kNull) continue;
      const bool is_octal = row->value == "N" && entry.text.size() > 1 && entry.text[0] == '0';
      row->read(config, where, is_octal ? nlohmann::json("octal " + entry.text) : json_of(entry));
    }
  }
  if (!has("distributed_type")) {
    throw UsageError::missing(name, "the key distributed_type",
                              "add the line: distributed_type: MULTI_GPU, or: 'NO'");
  }
  if (config.machine_rank < config.num_machines) return;
  throw UsageError::out_of_range(
      name + ": machine_rank", config.machine_rank,
      fmt::format("0 to {}, as num_machines is {}", config.num_machines - 1, config.num_machines),
      "machines count from 0");
}

}  // namespace

std::string_view file_with_key(std::string_view key) {
  constexpr std::string_view kFiles[][2] = {
      {"zero_optimization", "a configuration of DeepSpeed, which is not supported"},
      {"train_micro_batch_size_per_gpu", "a configuration of DeepSpeed, which is not supported"},
      {"train_batch_size", "a configuration of DeepSpeed, which is not supported"},
      {"compute_environment", "a configuration of accelerate, for config_file"},
      {"log_history", "the trainer_state.json of a checkpoint"},
      {"model_type", "the configuration of a network"},
      {"weight_map", "the index of a checkpoint in several files"}};
  if (key.starts_with("sagemaker_"))
    return "hyperparameters of SageMaker, which starts Python scripts";
  const auto* const found =
      std::ranges::find(kFiles, key, [](const auto& file) { return file[0]; });
  return found == std::end(kFiles) ? "" : (*found)[1];
}

void parse_config_file(std::string_view bytes, const std::string& name, AccelerateConfig& config) {
  read_keys(parse_yaml(bytes, name), name, config);
}

void read_config_file(const std::string& path, AccelerateConfig& config) {
  const std::string hint = fmt::format("accelerate config --config_file {} writes one", path);
  read_keys(read_yaml_file(path, hint), path, config);
}

void read_accelerate_environment(AccelerateConfig& config, const VariableLookup& lookup) {
  const Variables variables(lookup);
  for (const char* name : {"ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP",
                           "ACCELERATE_USE_MEGATRON_LM", "ACCELERATE_USE_PARALLELISM_CONFIG"}) {
    const auto text = variables.text(name);
    if (!text || !parse_bool(name, *text)) continue;
    throw UsageError::conflict(
        name, "not supported",
        fmt::format("unset {}, or choose MULTI_GPU in accelerate config", name));
  }
  for (const auto& table :
       {std::span<const Option<C>>(kKeys), std::span<const Option<C>>(kVariables)}) {
    for (const auto& row : table) {
      if (row.details.variable == nullptr) continue;
      const auto text = variables.text(row.details.variable);
      if (text) row.read(config, row.details.variable, *text);
    }
  }
}

AccelerateConfig accelerate_config(const AcceleratorOptions& options,
                                   const VariableLookup& lookup) {
  require_values<AcceleratorOptions>(accelerator_option_table(), options);
  AccelerateConfig config;
  if (!options.config_file.empty()) read_config_file(options.config_file, config);
  read_accelerate_environment(config, lookup);
  config.mixed_precision = options.mixed_precision.value_or(config.mixed_precision);
  config.debug = options.debug.value_or(config.debug);
  config.use_cpu = config.use_cpu || options.cpu;
  const int steps = options.gradient_accumulation.num_steps.value_or(1);
  if (!Variables(lookup).has(kSteps)) {
    config.gradient_accumulation_steps = steps;
  } else if (options.gradient_accumulation.num_steps &&
             steps != config.gradient_accumulation_steps) {
    config.notes.push_back(fmt::format("{}={} takes precedence over the option, which is {}",
                                       kSteps, config.gradient_accumulation_steps, steps));
  }
  if (config.cpu_affinity) {
    config.notes.emplace_back("CPU affinity is ignored: the launcher binds the cores");
  }
  return config;
}

Precision parse_mixed_precision(std::string_view where, std::string_view text) {
  const std::string name = to_lower(text);
  if (name == "no") return Precision::kFp32;
  if (name == "fp16") return Precision::kFp16;
  if (name == "bf16") return Precision::kBf16;
  const char* const hint =
      name == "fp8" ? "fp8 is not supported; bf16 comes nearest" : "no is full precision";
  throw UsageError::malformed(where, "no, fp16 or bf16", shortened(text), hint);
}

std::string mixed_precision_name(Precision precision) {
  if (precision == Precision::kFp16) return "fp16";
  return precision == Precision::kBf16 ? "bf16" : "no";
}

}  // namespace ladder
