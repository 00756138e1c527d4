// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/accelerate_config.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

// What `accelerate config` wrote for two GPUs of one machine.
const std::string kTwoGpus =
    "compute_environment: LOCAL_MACHINE\n"
    "deepspeed_config: {}\n"
    "distributed_type: MULTI_GPU\n"
    "fsdp_config: {}\n"
    "machine_rank: 0\n"
    "main_process_ip: null\n"
    "main_process_port: null\n"
    "main_training_function: main\n"
    "mixed_precision: fp16\n"
    "num_machines: 1\n"
    "num_processes: 2\n"
    "use_cpu: false\n";

AccelerateConfig parse(const std::string& text) {
  AccelerateConfig config;
  parse_config_file(text, "f.yaml", config);
  return config;
}

// A file with `line` as its line 2.
AccelerateConfig with_line(const std::string& line) {
  return parse("distributed_type: MULTI_GPU\n" + line + "\n");
}

using Table = std::map<std::string, std::string>;

VariableLookup lookup_in(const Table& table) {
  return [table](const std::string& name) {
    const auto found = table.find(name);
    return found == table.end() ? std::nullopt : std::optional(found->second);
  };
}

AccelerateConfig environment(const Table& table) {
  AccelerateConfig config;
  read_accelerate_environment(config, lookup_in(table));
  return config;
}

// Texts, and what their refusal contains.
using Refusals = std::vector<std::pair<std::string, std::string>>;

void expect_settings(const AccelerateConfig& got, const AccelerateConfig& expected) {
  const auto fields = [](const AccelerateConfig& config) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = config;
    return std::tuple(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  };
  EXPECT_EQ(fields(got), fields(expected));
}

TEST(ConfigFile, ReadsTheFileOfTwoGpus) {
  expect_settings(parse(kTwoGpus), {.mixed_precision = Precision::kFp16,
                                    .use_cpu = false,
                                    .distributed_type = DistributedType::kMultiGpu,
                                    .num_processes = 2,
                                    .num_machines = 1,
                                    .machine_rank = 0});
}

TEST(ConfigFile, ReadsEveryKeyThatCounts) {
  const auto settings = parse(
      "distributed_type: MULTI_CPU\nmixed_precision: 'no'\nuse_cpu: yes\ndebug: true\n"
      "enable_cpu_affinity: on\nnum_processes: 4\nnum_machines: 2\nmachine_rank: 1\n"
      "main_process_ip: 10.0.0.1\nmain_process_port: 0\ngpu_ids: 0,1\n");
  expect_settings(settings, {.mixed_precision = Precision::kFp32,
                             .use_cpu = true,
                             .debug = true,
                             .cpu_affinity = true,
                             .distributed_type = DistributedType::kMultiCpu,
                             .num_processes = 4,
                             .num_machines = 2,
                             .machine_rank = 1,
                             .main_process_ip = "10.0.0.1",
                             .main_process_port = 0,
                             .gpu_ids = "0,1"});
}

TEST(ConfigFile, ReadsJsonAndABareNoAsAName) {
  expect_settings(
      parse(
          R"({"distributed_type": "NO", "mixed_precision": "bf16", "use_cpu": true, "tpu_env": []})"),
      {.mixed_precision = Precision::kBf16,
       .use_cpu = true,
       .distributed_type = DistributedType::kNo});
  expect_settings(parse("distributed_type: NO\nmixed_precision: no\n"),
                  {.mixed_precision = Precision::kFp32, .distributed_type = DistributedType::kNo});
}

TEST(ConfigFile, ReadsTheFormOfOldFiles) {
  EXPECT_EQ(with_line("fp16: true").mixed_precision, Precision::kFp16);
  EXPECT_EQ(with_line("fp16: false").mixed_precision, Precision::kFp32);
  EXPECT_EQ(with_line("fp16: true\nmixed_precision: bf16").mixed_precision, Precision::kBf16);
  EXPECT_EQ(with_line("fp16: true\nmixed_precision: null").mixed_precision, Precision::kFp32);
  EXPECT_NO_THROW(with_line("dynamo_backend: 'NO'"));
  EXPECT_NO_THROW(with_line("tpu_use_cluster: false\ndowncast_bf16: 'no'"));
  EXPECT_EQ(with_line("num_processes: -1").num_processes, std::nullopt);
}

TEST(ConfigFile, RefusesWhatItDoesNotKnowByLineAndName) {
  for (const auto& [line, message] :
       Refusals{{"mixed_precison: bf16", "no such key; hint: did you mean mixed_precision?"},
                {"gradient_accumulation_steps: 4", "hint: remove the line"},
                {"mixed_precision: half", "expected no, fp16 or bf16, got 'half'"},
                {"mixed_precision: fp8", "hint: fp8 is not supported; bf16"},
                {"mixed_precision: [bf16]", "got '[\"bf16\"]'"},
                {"use_cpu: maybe", "expected true or false, got 'maybe'"},
                {"gpu_ids: cuda", "expected all, or numbers such as 0,1"},
                {"compute_environment: AMAZON_SAGEMAKER", "expected LOCAL_MACHINE"},
                {"main_process_port: 65536", "from 0 to 65535, got '65536'"},
                {"machine_rank: -1", "expected"},
                {"dynamo_backend: INDUCTOR", "expected NO, got 'INDUCTOR'"}}) {
    EXPECT_ERROR(with_line(line), UsageError, "f.yaml:2: " + line.substr(0, line.find(' ')),
                 message);
  }
  for (const char* number : {"0", "two", "2.0", "010", "0x2", "1_0", "-2", "99999999999", "''"}) {
    EXPECT_ERROR(with_line("num_processes: " + std::string(number)), UsageError,
                 "f.yaml:2: num_processes: expected a whole number from 1 to 100000, got '");
  }
  EXPECT_ERROR(parse("mixed_precision: bf16\n"), UsageError,
               "f.yaml: expected the key distributed_type, not set");
  for (const char* type : {"FSDP", "multi_gpu"}) {
    EXPECT_ERROR(parse("distributed_type: " + std::string(type)), UsageError,
                 "f.yaml:1: distributed_type: expected one of NO, MULTI_CPU, MULTI_GPU, got '");
  }
}

TEST(ConfigFile, SectionsForOtherEnginesMustBeEmpty) {
  for (const std::string key :
       {"deepspeed_config", "fsdp_config", "megatron_lm_config", "fp8_config", "parallelism_config",
        "mpirun_config", "tpu_env", "tpu_name"}) {
    for (const char* empty : {"{}", "[]", "null", "''", ""}) {
      EXPECT_NO_THROW(with_line(key + ": " + empty)) << key << empty;
    }
    EXPECT_ERROR(with_line(key + ":\n  zero_stage: 2"), UsageError,
                 "f.yaml:2: " + key + ": not supported, and holds zero_stage; hint: empty it");
    EXPECT_ERROR(with_line(key + ": [a]"), UsageError, key + ": not supported, and not empty");
    EXPECT_ERROR(with_line(key + ": text"), UsageError, key + ": not supported, and not empty");
  }
  EXPECT_ERROR(with_line("tpu_use_cluster: true"), UsageError, "tpu_use_cluster: not supported");
}

TEST(ConfigFile, ADynamoBackendIsRefused) {
  EXPECT_NO_THROW(with_line("dynamo_config: {}"));
  EXPECT_NO_THROW(with_line("dynamo_config:\n  dynamo_backend: 'NO'\n  dynamo_mode: default"));
  EXPECT_ERROR(with_line("dynamo_config:\n  dynamo_backend: INDUCTOR"), UsageError,
               "f.yaml:2: dynamo_config.dynamo_backend: expected NO, got 'INDUCTOR'");
  EXPECT_ERROR(with_line("dynamo_config:\n  backend: EAGER"), UsageError, "got 'EAGER'");
  EXPECT_ERROR(with_line("dynamo_config: [a]"), UsageError, "dynamo_config: not supported");
}

TEST(ConfigFile, IsReadFromDiskAndAMissingOneNamesTheCommandThatWritesOne) {
  const TemporaryFolder folder;
  AccelerateConfig config;
  read_config_file(folder.write("my_config_file.yaml", kTwoGpus), config);
  EXPECT_EQ(config.num_processes, 2);
  const std::string path = folder.file("none.yaml");
  EXPECT_ERROR(read_config_file(path, config), UsageError,
               path + ": expected a readable file, got none",
               "hint: accelerate config --config_file " + path + " writes one");
  EXPECT_ERROR(read_config_file(folder.path(), config), UsageError,
               "got a folder; hint: accelerate");
}

TEST(MixedPrecision, IsReadInUpperAndLowerCase) {
  EXPECT_EQ(parse_mixed_precision("X", "BF16"), Precision::kBf16);
  EXPECT_EQ(parse_mixed_precision("X", "No"), Precision::kFp32);
  for (const auto precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    EXPECT_EQ(parse_mixed_precision("X", mixed_precision_name(precision)), precision);
  }
}

TEST(AccelerateEnvironment, ReadsTheVariablesOfALauncherAndAUser) {
  const auto settings = environment({{"ACCELERATE_MIXED_PRECISION", "bf16"},
                                     {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"},
                                     {"ACCELERATE_USE_CPU", "True"},
                                     {"ACCELERATE_DEBUG_MODE", "true"},
                                     {"ACCELERATE_CPU_AFFINITY", "1"},
                                     {"ACCELERATE_TORCH_DEVICE", "cuda:1"},
                                     {"FORK_LAUNCHED", "1"},
                                     {"ACCELERATE_DYNAMO_BACKEND", "NO"},
                                     {"ACCELERATE_DYNAMO_MODE", "default"}});
  expect_settings(settings, {.mixed_precision = Precision::kBf16,
                             .gradient_accumulation_steps = 4,
                             .use_cpu = true,
                             .debug = true,
                             .device = "cuda:1",
                             .fork_launched = true,
                             .cpu_affinity = true});
}

TEST(AccelerateEnvironment, WithoutVariablesOrWithEmptyOnesIsUnset) {
  expect_settings(environment({}), {});
  expect_settings(environment({{"ACCELERATE_USE_CPU", ""}, {"ACCELERATE_MIXED_PRECISION", ""}}),
                  {});
}

TEST(AccelerateEnvironment, WrongValuesAreRefusedByName) {
  for (const auto& [name, value] : Refusals{{"ACCELERATE_MIXED_PRECISION", "half"},
                                            {"ACCELERATE_USE_CPU", "maybe"},
                                            {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "0"},
                                            {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "-1"},
                                            {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "two"},
                                            {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1.5"},
                                            {"ACCELERATE_DYNAMO_BACKEND", "INDUCTOR"}}) {
    EXPECT_ERROR(environment({{name, value}}), UsageError, name + ": expected ", "'" + value + "'");
  }
}

TEST(AccelerateEnvironment, OtherEnginesAreRefusedByName) {
  for (const char* name : {"ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP",
                           "ACCELERATE_USE_MEGATRON_LM", "ACCELERATE_USE_PARALLELISM_CONFIG"}) {
    EXPECT_ERROR(environment({{name, "true"}}), UsageError,
                 std::string(name) + ": not supported; hint: unset " + name);
    EXPECT_NO_THROW(environment({{name, "false"}}));
  }
}

// The configuration of these options, with a file of these lines.
AccelerateConfig configured(AcceleratorOptions options, const Table& variables,
                            const std::string& lines = "") {
  const TemporaryFolder folder;
  if (!lines.empty()) {
    options.config_file = folder.write("f.yaml", "distributed_type: MULTI_CPU\n" + lines);
  }
  return accelerate_config(options, lookup_in(variables));
}

TEST(Precedence, WithoutSourcesTheDefaultsHold) { expect_settings(configured({}, {}), {}); }

TEST(Precedence, OptionsThenEnvironmentThenFile) {
  const std::string lines = "mixed_precision: fp16\ndebug: true\nnum_processes: 2\n";
  const auto all =
      configured({.mixed_precision = Precision::kBf16, .debug = false},
                 {{"ACCELERATE_MIXED_PRECISION", "no"}, {"ACCELERATE_DEBUG_MODE", "true"}}, lines);
  EXPECT_EQ(all.mixed_precision, Precision::kBf16);
  EXPECT_FALSE(all.debug);
  const auto two = configured({}, {{"ACCELERATE_MIXED_PRECISION", "no"}}, lines);
  EXPECT_EQ(two.mixed_precision, Precision::kFp32);
  EXPECT_TRUE(two.debug);
  EXPECT_EQ(two.num_processes, 2);
  EXPECT_EQ(configured({}, {{"ACCELERATE_DEBUG_MODE", "false"}}, lines).mixed_precision,
            Precision::kFp16);
}

TEST(Precedence, TheVariableForAccumulationPrecedesTheOptionWithANote) {
  const AcceleratorOptions five{.gradient_accumulation = {.num_steps = 5}};
  const auto config = configured(five, {{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3"}});
  EXPECT_EQ(config.gradient_accumulation_steps, 3);
  ASSERT_EQ(config.notes.size(), 1U);
  EXPECT_TRUE(config.notes[0].starts_with("ACCELERATE_GRADIENT_ACCUMULATION_STEPS=3 takes prec"));
  EXPECT_EQ(configured(five, {}).gradient_accumulation_steps, 5);
  EXPECT_TRUE(configured(five, {}).notes.empty());
}

TEST(Precedence, UseCpuIsTrueIfTheOptionOrTheEnvironmentIsTrue) {
  const auto use_cpu = [](bool option, const char* variable, const char* file) {
    return configured({.cpu = option}, {{"ACCELERATE_USE_CPU", variable}},
                      std::string("use_cpu: ") + file + "\n")
        .use_cpu;
  };
  EXPECT_TRUE(use_cpu(true, "false", "false"));
  EXPECT_TRUE(use_cpu(false, "true", "false"));
  EXPECT_TRUE(use_cpu(false, "", "true"));
  EXPECT_FALSE(use_cpu(false, "false", "true"));
  EXPECT_FALSE(use_cpu(false, "", "false"));
}

TEST(Precedence, AnIgnoredAffinityIsNoted) {
  EXPECT_EQ(configured({}, {}, "enable_cpu_affinity: true\n").notes.size(), 1U);
  EXPECT_EQ(configured({}, {{"ACCELERATE_CPU_AFFINITY", "1"}}).notes.size(), 1U);
  EXPECT_TRUE(configured({}, {}, "enable_cpu_affinity: false\n").notes.empty());
}

TEST(Precedence, ImpossibleNumbersAreRefused) {
  EXPECT_ERROR(configured({.gradient_accumulation = {.num_steps = 0}}, {}), UsageError,
               "gradient_accumulation_steps: expected a whole number from 1 to 1000000, got '0'");
  EXPECT_ERROR(with_line("num_machines: 2\nmachine_rank: 2"), UsageError,
               "f.yaml: machine_rank: expected 0 to 1, as num_machines is 2, got 2");
}

}  // namespace
}  // namespace ladder
