// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/accelerate_config.h"

#include <fmt/format.h>

#include <functional>
#include <initializer_list>
#include <map>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/core/text.h"
#include "ladder/io/yaml.h"
#include "ladder/launch/launch_variables.h"

namespace ladder {
namespace {

class ConfigFile {
 public:
  explicit ConfigFile(std::string name) : name_(std::move(name)) {}

  AccelerateSettings read(const YamlNode& root) {
    const auto readers = make_readers();
    bool has_type = false;
    for (const auto& entry : root.children) {
      const bool is_type = entry.key == "distributed_type" && entry.kind == YamlNode::Kind::kText;
      if (is_type) read_distributed_type(entry);  // first: other keys follow from it
    }
    for (const auto& entry : root.children) {
      const auto reader = readers.find(entry.key);
      if (reader == readers.end()) throw unknown(root, entry, readers);
      has_type = has_type || entry.key == "distributed_type";
      has_precision_ = has_precision_ || entry.key == "mixed_precision";
      if (entry.kind != YamlNode::Kind::kNull) reader->second(entry);
    }
    if (!has_type) {
      throw UsageError::missing(name_, "the key distributed_type",
                                "add the line: distributed_type: MULTI_GPU, or: 'NO'");
    }
    if (fp16_.value_or(false) && !has_precision_) settings_.mixed_precision = Precision::kFp16;
    return settings_;
  }

 private:
  using Reader = std::function<void(const YamlNode&)>;
  using Readers = std::map<std::string, Reader>;

  static constexpr int kMostProcesses = kLargestWorldSize;
  static constexpr const char* kWriteAgain = "write the file again: accelerate config";

  Readers make_readers() {
    Readers readers = {
        {"compute_environment", [this](const auto& entry) { check_environment(entry); }},
        {"debug", flag_reader(settings_.debug)},
        {"distributed_type", [this](const auto& entry) { read_distributed_type(entry); }},
        {"dynamo_backend", [this](const auto& entry) { check_dynamo_backend(entry); }},
        {"dynamo_config", [this](const auto& entry) { check_dynamo_config(entry); }},
        {"enable_cpu_affinity", flag_reader(settings_.cpu_affinity)},
        {"fp16", flag_reader(fp16_)},  // of old files; mixed_precision takes precedence
        {"gpu_ids", [this](const auto& entry) { read_gpu_ids(entry); }},
        {"machine_rank", number_reader(settings_.machine_rank, 0, kMostProcesses - 1)},
        {"main_process_ip",
         [this](const auto& entry) {
           settings_.main_process_ip = text(entry, "a host name or an address");
         }},
        {"main_process_port", number_reader(settings_.main_process_port, 0, 65535)},
        {"mixed_precision",
         [this](const auto& entry) {
           settings_.mixed_precision =
               parse_mixed_precision(where(entry), text(entry, "no, fp16, bf16"));
         }},
        {"num_machines", number_reader(settings_.num_machines, 1, kMostProcesses)},
        {"num_processes",
         [this](const auto& entry) {
           if (text(entry) == "-1") return;
           number_reader(settings_.num_processes, 1, kMostProcesses)(entry);
         }},
        {"tpu_use_cluster",
         [this](const auto& entry) {
           if (flag(entry)) refuse_section(entry);
         }},
        {"use_cpu", flag_reader(settings_.use_cpu)}};
    for (const char* name : {"command_file", "commands", "deepspeed_config", "fp8_config",
                             "fsdp_config", "megatron_lm_config", "mpirun_config",
                             "parallelism_config", "tpu_env", "tpu_name", "tpu_vm", "tpu_zone"}) {
      readers[name] = [this](const auto& entry) {
        if (!entry.is_empty()) refuse_section(entry);
      };
    }
    for (const char* name : {"downcast_bf16", "main_training_function", "rdzv_backend",
                             "same_network", "tpu_use_sudo"}) {
      readers[name] = [](const auto& /*ignored*/) {};
    }
    return readers;
  }

  Reader flag_reader(std::optional<bool>& target) {
    return [this, &target](const YamlNode& entry) { target = flag(entry); };
  }

  Reader number_reader(std::optional<int>& target, int minimum, int maximum) {
    return [=, this, &target](const YamlNode& entry) {
      const auto expected = fmt::format("a whole number, {} to {}", minimum, maximum);
      const std::string got = text(entry, expected);
      const bool octal = got.size() > 1 && got.front() == '0';
      const auto value = parse_number<int>(got);
      if (!value || octal || *value < minimum || *value > maximum) {
        throw UsageError::malformed(where(entry), expected, shortened(got), kWriteAgain);
      }
      target = value;
    };
  }

  std::string where(const YamlNode& entry) const {
    return fmt::format("{}:{}: {}", name_, entry.line, shortened(entry.key));
  }

  UsageError unknown(const YamlNode& root, const YamlNode& entry, const Readers& readers) const {
    for (const auto& other : root.children) {
      const auto file = file_with_key(other.key);
      if (file.empty() || readers.contains(other.key)) continue;
      return UsageError::conflict(where(other), fmt::format("the file holds {}", file),
                                  fmt::format("accelerate config --config_file {}", name_));
    }
    std::vector<std::string> names;
    for (const auto& [name, read] : readers) names.push_back(name);
    const std::string nearest = nearest_name(entry.key.substr(0, 80), names);
    return UsageError::conflict(
        where(entry), "accelerate's configuration has no such key",
        nearest.empty() ? "remove the line" : fmt::format("did you mean {}?", nearest));
  }

  std::string text(const YamlNode& entry, std::string_view expected = "a text") const {
    if (entry.kind == YamlNode::Kind::kText) return entry.text;
    const bool is_map = entry.kind == YamlNode::Kind::kMap;
    throw UsageError::malformed(where(entry), expected, is_map ? "a map" : "a list", kWriteAgain);
  }

  bool flag(const YamlNode& entry) const {
    return parse_bool(where(entry), text(entry, "true or false"));
  }

  void read_gpu_ids(const YamlNode& entry) {
    const std::string ids = text(entry, "all, or numbers such as 0,1");
    const bool is_list = !ids.empty() && ids.find_first_not_of("0123456789, ") == std::string::npos;
    if (ids != "all" && !is_list) {
      throw UsageError::malformed(where(entry), "all, or numbers such as 0,1", shortened(ids),
                                  kWriteAgain);
    }
    settings_.gpu_ids = ids;
  }

  void read_distributed_type(const YamlNode& entry) {
    const std::string type = text(entry, "NO, MULTI_CPU or MULTI_GPU");
    if (to_lower(type) == "no") {
      settings_.distributed_type = DistributedType::kNo;
    } else if (type == "MULTI_CPU") {
      settings_.distributed_type = DistributedType::kMultiCpu;
    } else if (type == "MULTI_GPU") {
      settings_.distributed_type = DistributedType::kMultiGpu;
    } else {
      throw UsageError::malformed(where(entry), "NO, MULTI_CPU or MULTI_GPU", shortened(type),
                                  fmt::format("{} is not supported; choose another type: "
                                              "accelerate config --config_file {}",
                                              shortened(type), name_));
    }
  }

  void check_environment(const YamlNode& entry) const {
    const std::string name = text(entry, "LOCAL_MACHINE");
    if (name == "LOCAL_MACHINE") return;
    const char* const what = name == "AMAZON_SAGEMAKER" ? "SageMaker starts Python scripts; " : "";
    throw UsageError::malformed(
        where(entry), "LOCAL_MACHINE", shortened(name),
        fmt::format("{}write the file again: accelerate config --config_file {}", what, name_));
  }

  void check_dynamo_backend(const YamlNode& entry) const {
    if (to_lower(text(entry, "NO")) == "no") return;
    throw UsageError::malformed(where(entry), "NO", shortened(entry.text),
                                "a C++ model is compiled already; remove the line");
  }

  // Python accepts the key with and without the prefix.
  void check_dynamo_config(const YamlNode& entry) const {
    for (const auto& child : entry.children) {
      if (child.key == "dynamo_backend" || child.key == "backend") check_dynamo_backend(child);
    }
    if (entry.kind != YamlNode::Kind::kMap && !entry.is_empty()) refuse_section(entry);
  }

  [[noreturn]] void refuse_section(const YamlNode& entry) const {
    const bool is_map = entry.kind == YamlNode::Kind::kMap;
    throw UsageError::conflict(
        where(entry),
        is_map ? fmt::format("not supported, and holds {}", shortened(entry.children.front().key))
               : "not supported, and not empty",
        "empty it or remove it; plain data parallel training needs none of it");
  }

  std::string name_;
  AccelerateSettings settings_;
  std::optional<bool> fp16_;
  bool has_precision_ = false;
};

template <typename T>
std::optional<T> first_of(std::initializer_list<std::optional<T>> values) {
  for (const auto& value : values) {
    if (value) return value;
  }
  return std::nullopt;
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

AccelerateSettings parse_config_file(std::string_view bytes, const std::string& name) {
  return ConfigFile(name).read(parse_yaml(bytes, name));
}

AccelerateSettings read_config_file(const std::string& path) {
  const std::string hint = fmt::format("accelerate config --config_file {} writes one", path);
  return ConfigFile(path).read(read_yaml_file(path, hint));
}

AccelerateSettings read_accelerate_environment(const VariableLookup& lookup) {
  const Variables variables(lookup);
  const auto flag = [&](const std::string& name) -> std::optional<bool> {
    const auto text = variables.text(name);
    return text ? std::optional(parse_bool(name, *text)) : std::nullopt;
  };
  for (const char* name : {"ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP",
                           "ACCELERATE_USE_MEGATRON_LM", "ACCELERATE_USE_PARALLELISM_CONFIG"}) {
    if (!flag(name).value_or(false)) continue;
    throw UsageError::conflict(
        name, "not supported",
        fmt::format("unset {}, or choose MULTI_GPU in accelerate config", name));
  }
  const char* dynamo = "ACCELERATE_DYNAMO_BACKEND";
  const std::string backend = variables.text(dynamo).value_or("no");
  if (to_lower(backend) != "no") {
    throw UsageError::malformed(dynamo, "no", shortened(backend),
                                fmt::format("a C++ model is compiled already: unset {}", dynamo));
  }
  const char* precision = "ACCELERATE_MIXED_PRECISION";
  AccelerateSettings settings;
  if (const auto text = variables.text(precision)) {
    settings.mixed_precision = parse_mixed_precision(precision, *text);
  }
  settings.gradient_accumulation_steps =
      variables.integer("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 1);
  settings.use_cpu = flag("ACCELERATE_USE_CPU");
  settings.debug = flag("ACCELERATE_DEBUG_MODE");
  settings.device = variables.text("ACCELERATE_TORCH_DEVICE");
  settings.fork_launched = flag("FORK_LAUNCHED");
  settings.cpu_affinity = flag("ACCELERATE_CPU_AFFINITY");
  return settings;
}

AccelerateConfig resolve_accelerate_config(const AccelerateSources& sources) {
  const auto& [options, environment, file] = sources;
  AccelerateConfig config;
  config.mixed_precision =
      first_of({options.mixed_precision, environment.mixed_precision, file.mixed_precision})
          .value_or(config.mixed_precision);
  const auto option = options.gradient_accumulation_steps;
  const auto variable = environment.gradient_accumulation_steps;
  const int steps = first_of({variable, option}).value_or(1);
  require_between("gradient_accumulation_steps", steps, 1, kMostBatchesPerStep,
                  "1 steps after each batch");
  if (option && variable && *option != *variable) {
    config.notes.push_back(fmt::format(
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS={} takes precedence over the option, which is {}",
        *variable, *option));
  }
  config.gradient_accumulation_steps = steps;
  config.use_cpu = options.use_cpu.value_or(false) ||
                   first_of({environment.use_cpu, file.use_cpu}).value_or(false);
  config.debug = first_of({options.debug, environment.debug, file.debug}).value_or(config.debug);
  config.device = first_of({options.device, environment.device}).value_or(config.device);
  config.fork_launched = environment.fork_launched.value_or(config.fork_launched);
  if (first_of({environment.cpu_affinity, file.cpu_affinity}).value_or(false)) {
    config.notes.emplace_back("CPU affinity is ignored: the launcher binds the cores");
  }
  config.distributed_type = file.distributed_type.value_or(config.distributed_type);
  config.num_processes = file.num_processes;
  config.num_machines = file.num_machines.value_or(config.num_machines);
  config.machine_rank = file.machine_rank.value_or(config.machine_rank);
  config.main_process_ip = file.main_process_ip.value_or(config.main_process_ip);
  config.main_process_port = file.main_process_port;
  config.gpu_ids = file.gpu_ids.value_or(config.gpu_ids);
  if (config.machine_rank < config.num_machines) return config;
  throw UsageError::out_of_range(
      "machine_rank", config.machine_rank,
      fmt::format("0 to {}, as num_machines is {}", config.num_machines - 1, config.num_machines),
      "machines count from 0");
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
