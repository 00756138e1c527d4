// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/accelerate_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "ladder/accelerate/yaml_file.h"
#include "ladder/comm/launch_variables.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return lower;
}

std::string shortened(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  return fmt::format("{}{}", text.substr(0, kLongest), text.size() > kLongest ? "..." : "");
}

// Fills the settings from the entries of one file.
class ConfigFile {
 public:
  explicit ConfigFile(std::string name) : name_(std::move(name)) {}

  AccelerateSettings read(const YamlNode& root) {
    for (const auto& entry : root.children) read_entry(entry);
    if (!has(root, "distributed_type")) {
      throw UsageError::missing(name_, "the key distributed_type",
                                "add the line: distributed_type: MULTI_GPU, or: 'NO'");
    }
    const bool is_old = fp16_ && !has(root, "mixed_precision");
    if (is_old) settings_.mixed_precision = Precision::kFp16;
    return settings_;
  }

 private:
  struct Key {
    std::string_view name;
    void (ConfigFile::*read)(const YamlNode&);  // gets no value that is null
  };

  static std::span<const Key> keys() {
    using C = ConfigFile;
    static constexpr Key kKeys[] = {{"command_file", &C::unsupported},
                                    {"commands", &C::unsupported},
                                    {"compute_environment", &C::compute_environment},
                                    {"debug", &C::debug},
                                    {"deepspeed_config", &C::unsupported},
                                    {"distributed_type", &C::distributed_type},
                                    {"downcast_bf16", &C::passed_over},
                                    {"dynamo_backend", &C::dynamo_backend},
                                    {"dynamo_config", &C::dynamo_config},
                                    {"enable_cpu_affinity", &C::cpu_affinity},
                                    {"fp16", &C::fp16},
                                    {"fp8_config", &C::unsupported},
                                    {"fsdp_config", &C::unsupported},
                                    {"gpu_ids", &C::gpu_ids},
                                    {"machine_rank", &C::machine_rank},
                                    {"main_process_ip", &C::main_process_ip},
                                    {"main_process_port", &C::main_process_port},
                                    {"main_training_function", &C::passed_over},
                                    {"megatron_lm_config", &C::unsupported},
                                    {"mixed_precision", &C::mixed_precision},
                                    {"mpirun_config", &C::unsupported},
                                    {"num_machines", &C::num_machines},
                                    {"num_processes", &C::num_processes},
                                    {"parallelism_config", &C::unsupported},
                                    {"rdzv_backend", &C::passed_over},
                                    {"same_network", &C::passed_over},
                                    {"tpu_env", &C::unsupported},
                                    {"tpu_name", &C::unsupported},
                                    {"tpu_use_cluster", &C::flag_for_tpus},
                                    {"tpu_use_sudo", &C::passed_over},
                                    {"tpu_vm", &C::unsupported},
                                    {"tpu_zone", &C::unsupported},
                                    {"use_cpu", &C::use_cpu}};
    return kKeys;
  }

  static bool has(const YamlNode& root, std::string_view name) {
    return std::any_of(root.children.begin(), root.children.end(),
                       [&](const YamlNode& entry) { return entry.key == name; });
  }

  std::string where(const YamlNode& entry) const {
    return fmt::format("{}:{}: {}", name_, entry.line, shortened(entry.key));
  }

  void read_entry(const YamlNode& entry) {
    const auto key = std::find_if(keys().begin(), keys().end(),
                                  [&](const Key& k) { return k.name == entry.key; });
    if (key == keys().end()) throw unknown(entry);
    if (entry.kind != YamlNode::Kind::kNull) (this->*key->read)(entry);
  }

  UsageError unknown(const YamlNode& entry) const {
    std::vector<std::string> names;
    for (const auto& key : keys()) names.emplace_back(key.name);
    const std::string nearest = nearest_name(entry.key.substr(0, 80), names);
    return UsageError::conflict(
        where(entry), "accelerate's configuration has no such key",
        nearest.empty() ? "remove the line" : fmt::format("did you mean {}?", nearest));
  }

  std::string text(const YamlNode& entry, std::string_view expected = "a text") const {
    if (entry.kind == YamlNode::Kind::kText) return entry.text;
    const bool is_map = entry.kind == YamlNode::Kind::kMap;
    throw UsageError::malformed(where(entry), expected, is_map ? "a map" : "a list");
  }

  int number(const YamlNode& entry, int minimum, int maximum) const {
    const std::string expected = fmt::format("a whole number, {} to {}", minimum, maximum);
    const std::string said = text(entry, expected);
    const bool octal = said.size() > 1 && said.front() == '0';
    const auto value = whole_number(said);
    if (!value || octal || *value < minimum || *value > maximum) {
      throw UsageError::malformed(where(entry), expected, shortened(said));
    }
    return static_cast<int>(*value);
  }

  bool flag(const YamlNode& entry) const {
    return parse_bool(where(entry), text(entry, "true or false"));
  }

  void mixed_precision(const YamlNode& entry) {
    settings_.mixed_precision = parse_mixed_precision(where(entry), text(entry, "no, fp16, bf16"));
  }

  // The form of files that were written before there was mixed_precision, which wins.
  void fp16(const YamlNode& entry) { fp16_ = flag(entry); }

  void use_cpu(const YamlNode& entry) { settings_.use_cpu = flag(entry); }
  void debug(const YamlNode& entry) { settings_.debug = flag(entry); }
  void cpu_affinity(const YamlNode& entry) { settings_.cpu_affinity = flag(entry); }

  void num_processes(const YamlNode& entry) {
    if (text(entry) != "-1") settings_.num_processes = number(entry, 1, kMostProcesses);
  }
  void num_machines(const YamlNode& entry) {
    settings_.num_machines = number(entry, 1, kMostProcesses);
  }
  void machine_rank(const YamlNode& entry) {
    settings_.machine_rank = number(entry, 0, kMostProcesses - 1);
  }
  void main_process_port(const YamlNode& entry) {
    settings_.main_process_port = number(entry, 0, 65535);
  }
  void main_process_ip(const YamlNode& entry) {
    settings_.main_process_ip = text(entry, "a host name or an address");
  }

  void gpu_ids(const YamlNode& entry) {
    const std::string ids = text(entry, "all, or numbers such as 0,1");
    const bool is_list = !ids.empty() && ids.find_first_not_of("0123456789, ") == std::string::npos;
    if (ids != "all" && !is_list) {
      throw UsageError::malformed(where(entry), "all, or numbers such as 0,1", shortened(ids));
    }
    settings_.gpu_ids = ids;
  }

  void distributed_type(const YamlNode& entry) {
    static constexpr std::array<std::pair<std::string_view, DistributedType>, 3> kTypes = {
        {{"NO", DistributedType::kNo},
         {"MULTI_CPU", DistributedType::kMultiCpu},
         {"MULTI_GPU", DistributedType::kMultiGpu}}};
    const std::string said = text(entry, "NO, MULTI_CPU or MULTI_GPU");
    const std::string name = in_lower_case(said) == "no" ? "NO" : said;
    const auto* const type = std::find_if(kTypes.begin(), kTypes.end(),
                                          [&](const auto& pair) { return pair.first == name; });
    if (type == kTypes.end()) {
      throw UsageError::malformed(where(entry), "NO, MULTI_CPU or MULTI_GPU", shortened(said),
                                  "the other types of accelerate are not supported");
    }
    settings_.distributed_type = type->second;
  }

  void compute_environment(const YamlNode& entry) {
    const std::string said = text(entry, "LOCAL_MACHINE");
    if (said == "LOCAL_MACHINE") return;
    throw UsageError::malformed(where(entry), "LOCAL_MACHINE", shortened(said),
                                "write the file again: accelerate config --config_file " + name_);
  }

  void dynamo_backend(const YamlNode& entry) {
    if (in_lower_case(text(entry, "NO")) == "no") return;
    throw UsageError::malformed(where(entry), "NO", shortened(entry.text),
                                "a C++ model is compiled already; remove the line");
  }

  // Python puts the prefix before a name without it.
  void dynamo_config(const YamlNode& entry) {
    for (const auto& child : entry.children) {
      if (child.key == "dynamo_backend" || child.key == "backend") dynamo_backend(child);
    }
    if (entry.kind != YamlNode::Kind::kMap) unsupported(entry);
  }

  void unsupported(const YamlNode& entry) {
    if (entry.is_empty()) return;
    const bool is_map = entry.kind == YamlNode::Kind::kMap;
    throw UsageError::conflict(
        where(entry),
        is_map ? fmt::format("not supported, and holds {}", shortened(entry.children.front().key))
               : "not supported, and not empty",
        "empty it or remove it; plain data parallel training needs none of it");
  }

  void flag_for_tpus(const YamlNode& entry) {
    if (flag(entry)) unsupported(entry);
  }

  void passed_over(const YamlNode&) {}

  static constexpr int kMostProcesses = 1'000'000;

  std::string name_;
  AccelerateSettings settings_;
  bool fp16_ = false;
};

// One of the variables that Python's launcher sets.
class Environment {
 public:
  explicit Environment(const VariableLookup& lookup) : variables_(lookup) {}

  std::optional<bool> flag(const std::string& name) const {
    const auto text = variables_.text(name);
    return text ? std::optional(parse_bool(name, *text)) : std::nullopt;
  }

  std::optional<Precision> precision(const std::string& name) const {
    const auto text = variables_.text(name);
    return text ? std::optional(parse_mixed_precision(name, *text)) : std::nullopt;
  }

  void refuse_what_is_not_supported() const {
    for (const char* name : {"ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP",
                             "ACCELERATE_USE_MEGATRON_LM", "ACCELERATE_USE_PARALLELISM_CONFIG"}) {
      if (!flag(name).value_or(false)) continue;
      throw UsageError::conflict(
          name, "not supported",
          fmt::format("unset {}, or choose MULTI_GPU in accelerate config", name));
    }
    const char* dynamo = "ACCELERATE_DYNAMO_BACKEND";
    const auto backend = variables_.text(dynamo);
    if (!backend || in_lower_case(*backend) == "no") return;
    throw UsageError::malformed(dynamo, "no", shortened(*backend),
                                fmt::format("a C++ model is compiled already: unset {}", dynamo));
  }

  const Variables& variables() const { return variables_; }

 private:
  Variables variables_;
};

template <typename T, typename... Rest>
std::optional<T> first_of(const std::optional<T>& first, const Rest&... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return first;
  } else {
    return first ? first : first_of(rest...);
  }
}

bool resolve_use_cpu(const AccelerateSources& sources) {
  const bool asked = sources.options.use_cpu.value_or(false);
  return asked || first_of(sources.environment.use_cpu, sources.file.use_cpu).value_or(false);
}

int resolve_accumulation(const AccelerateSources& sources, std::vector<std::string>& notes) {
  const auto option = sources.options.gradient_accumulation_steps;
  const auto variable = sources.environment.gradient_accumulation_steps;
  const int steps = first_of(variable, option).value_or(1);
  if (steps < 1) throw UsageError::out_of_range("gradient_accumulation_steps", steps, "at least 1");
  if (option && variable && *option != *variable) {
    notes.push_back(
        fmt::format("ACCELERATE_GRADIENT_ACCUMULATION_STEPS={} wins over the option, which says {}",
                    *variable, *option));
  }
  return steps;
}

void resolve_processes(const AccelerateSettings& file, AccelerateConfig& config) {
  config.distributed_type = file.distributed_type.value_or(config.distributed_type);
  config.num_processes = file.num_processes;
  config.num_machines = file.num_machines.value_or(config.num_machines);
  config.machine_rank = file.machine_rank.value_or(config.machine_rank);
  config.main_process_ip = file.main_process_ip.value_or(config.main_process_ip);
  config.main_process_port = file.main_process_port;
  config.gpu_ids = file.gpu_ids.value_or(config.gpu_ids);
  if (config.machine_rank < config.num_machines) return;
  throw UsageError::out_of_range(
      "machine_rank", config.machine_rank,
      fmt::format("0 to {}, as num_machines is {}", config.num_machines - 1, config.num_machines),
      "machines count from 0");
}

}  // namespace

AccelerateSettings parse_config_file(std::string_view bytes, const std::string& name) {
  return ConfigFile(name).read(parse_yaml(bytes, name));
}

AccelerateSettings read_config_file(const std::string& path) {
  const std::string hint = fmt::format("accelerate config --config_file {} writes one", path);
  return ConfigFile(path).read(read_yaml_file(path, hint));
}

AccelerateSettings read_accelerate_environment(const VariableLookup& lookup) {
  const Environment environment(lookup);
  environment.refuse_what_is_not_supported();
  return {.mixed_precision = environment.precision("ACCELERATE_MIXED_PRECISION"),
          .gradient_accumulation_steps =
              environment.variables().integer("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 1),
          .use_cpu = environment.flag("ACCELERATE_USE_CPU"),
          .debug = environment.flag("ACCELERATE_DEBUG_MODE"),
          .device = environment.variables().text("ACCELERATE_TORCH_DEVICE"),
          .fork_launched = environment.flag("FORK_LAUNCHED"),
          .cpu_affinity = environment.flag("ACCELERATE_CPU_AFFINITY")};
}

AccelerateConfig resolve_accelerate_config(const AccelerateSources& sources) {
  const auto& [options, environment, file] = sources;
  AccelerateConfig config;
  config.mixed_precision =
      first_of(options.mixed_precision, environment.mixed_precision, file.mixed_precision)
          .value_or(config.mixed_precision);
  config.gradient_accumulation_steps = resolve_accumulation(sources, config.notes);
  config.use_cpu = resolve_use_cpu(sources);
  config.debug = first_of(options.debug, environment.debug, file.debug).value_or(config.debug);
  config.device = first_of(options.device, environment.device).value_or(config.device);
  config.fork_launched = environment.fork_launched.value_or(config.fork_launched);
  if (first_of(environment.cpu_affinity, file.cpu_affinity).value_or(false)) {
    config.notes.emplace_back("CPU affinity has no effect: the launcher's binding of cores holds");
  }
  resolve_processes(file, config);
  return config;
}

Precision parse_mixed_precision(std::string_view where, std::string_view text) {
  const std::string name = in_lower_case(text);
  if (name == "no") return Precision::kFp32;
  if (name == "fp16") return Precision::kFp16;
  if (name == "bf16") return Precision::kBf16;
  const std::string hint = name == "fp8" ? "fp8 is not supported; bf16 comes nearest" : "";
  throw UsageError::malformed(where, "no, fp16 or bf16", shortened(text), hint);
}

std::string mixed_precision_name(Precision precision) {
  if (precision == Precision::kFp16) return "fp16";
  return precision == Precision::kBf16 ? "bf16" : "no";
}

bool parse_bool(std::string_view where, std::string_view text) {
  static constexpr std::array<std::string_view, 6> kTrue = {"y", "yes", "t", "true", "on", "1"};
  static constexpr std::array<std::string_view, 6> kFalse = {"n", "no", "f", "false", "off", "0"};
  const std::string flag = in_lower_case(text);
  if (std::find(kTrue.begin(), kTrue.end(), flag) != kTrue.end()) return true;
  if (std::find(kFalse.begin(), kFalse.end(), flag) != kFalse.end()) return false;
  throw UsageError::malformed(where, "true or false", shortened(text));
}

}  // namespace ladder
