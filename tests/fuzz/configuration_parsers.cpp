// SPDX-License-Identifier: Apache-2.0
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/trainer/argument_table.h"
#include "ladder/trainer/training_arguments.h"
#include "mnist/hparams_file.h"
#include "tests/fuzz/input_file.h"
#include "tests/fuzz/parsers.h"

namespace ladder {
namespace {

Parser accelerate_file() {
  return {.name = "accelerate_file",
          .sources = {"ladder/accelerate/accelerate_config.cpp", "ladder/io/yaml.cpp"},
          .samples = samples_of(
              {"compute_environment: LOCAL_MACHINE\ndeepspeed_config: {}\n"
               "distributed_type: MULTI_GPU\nmixed_precision: 'bf16'\nnum_processes: 2\n",
               R"({"distributed_type": "NO", "use_cpu": true, "tpu_env": [], "debug": "y"})",
               "---\ndistributed_type: \"NO\"  # one\ndynamo_config:\n  dynamo_backend: 'NO'\n"
               "  list:\n  - a\n  - {b: [c, ~]}\ngpu_ids: >-\n  0,1\n...\n",
               "? distributed_type\n: MULTI_CPU\nmain_process_ip: |\n  10.0.0.1\n",
               "distributed_type: NO\nfp16: yes\nnum_machines: 2\nmachine_rank: 1\n"
               "main_process_port: 0\nenable_cpu_affinity: true\nrdzv_backend: static\n",
               "distributed_type: NO\ntpu_use_cluster: true\nfsdp_config: {a: 1}\ngpu_ids: all\n",
               "distributed_type: FSDP\n", "compute_environment: AMAZON_SAGEMAKER\n",
               "distributed_type: NO\ngpu_ids: none\n",
               "distributed_type: NO\nnum_processes: -1\nnum_machines: 2\nmachine_rank: 2\n",
               "distributed_type: [NO]\n", "dynamo_config: [a]\n", "dynamo_backend: INDUCTOR\n",
               "? [a]\n: b\n", "a: &x 1\nb: *x\n", "a: !!str 1\n", "a: [[[[[[[[1]]]]]]]]\n",
               "a: 1\n---\nb: 2\n", "a: 1\na: 2\n"}),
          .parse =
              [file = std::make_shared<const InputFile>("file.yaml")](const Bytes& bytes) {
                AccelerateConfig config;
                read_config_file(file->with(bytes), config);
              },
          .refusal = ExitCode::kUsage};
}

Parser hparams() {
  return {.name = "hparams",
          .sources = {"mnist/hparams_file.cpp", "ladder/io/yaml.cpp"},
          .samples =
              samples_of({"epochs: 3\nbatch_size: 64\nlr: 1e-3\nsave: 'a: b'\n",
                          R"({"epochs": 1, "batch-size": "64"})", "batch-size: 1\nbatch_size: 2\n",
                          "lr: |\n  1\n  2\n", "lr:\n", "betas: [0.9, 0.99]\n", "%: 1\n"}),
          .parse =
              [file = std::make_shared<const InputFile>("file.yaml")](const Bytes& bytes) {
                for (const auto& [name, value] : mnist::read_hparams(file->with(bytes))) {
                  require(name.find('_') == std::string::npos, "_ in a flag's name");
                  require(value.find('\n') == std::string::npos, "a value of several lines");
                }
              },
          .refusal = ExitCode::kUsage};
}

std::vector<std::string> argument_names() {
  auto names = option_names(training_argument_table());
  for (const auto& row : unsupported_argument_table()) names.emplace_back(row.name);
  return names;
}

void read_arguments(const std::string& path) {
  std::vector<std::string> notes;
  auto arguments = read_training_arguments(path, &notes);
  resolve(arguments);
  require(resolve(arguments).empty(), "notes when resolved again");
  const auto json = to_json(arguments);
  const auto again = training_arguments_from(nlohmann::json(json), "again");
  require(to_json(again).dump() == json.dump(), "other arguments when read again");
  require(again.accelerator_config.mode() == arguments.accelerator_config.mode(), "another mode");
}

constexpr const char* kArgumentSources[] = {"ladder/trainer/argument_file.cpp",
                                            "ladder/trainer/argument_table.cpp",
                                            "ladder/trainer/training_arguments.cpp"};

Parser arguments_parser(const std::string& name, const std::string& file,
                        std::vector<Bytes> samples) {
  return {.name = name,
          .sources = {std::begin(kArgumentSources), std::end(kArgumentSources)},
          .samples = std::move(samples),
          .parse = [file = std::make_shared<const InputFile>(file)](
                       const Bytes& bytes) { read_arguments(file->with(bytes)); },
          .refusal = ExitCode::kUsage,
          .words = argument_names()};
}

Parser arguments_json() {
  return arguments_parser(
      "arguments_json", "file.json",
      samples_of(
          {"{\"output_dir\": \"a\", \"learning_rate\": 5e-05, \"seed\": 42, \"fp16\": false,\n"
           " \"tf32\": null, \"eval_strategy\": \"epoch\", \"label_names\": [\"labels\"],\n"
           " \"accelerator_config\": {\"split_batches\": true},\n"
           " \"lr_scheduler_kwargs\": {\"num_cycles\": 0.5, \"power\": \"2\"}}\n",
           "{\"output_dir\": \"~/a\", \"evaluation_strategy\": \"no\", \"report_to\": \"all\",\n"
           " \"fsdp\": \"\", \"lr_scheduler_kwargs\": \"{\\\"power\\\": 1}\", \"max_steps\": -1}",
           "{}",
           "{\"output_dir\": [[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]}",
           R"({"save_strategy": "no", "eval_strategy": "steps", "eval_steps": 2})",
           R"({"save_strategy": "no", "eval_strategy": "steps", "logging_steps": 0.25})",
           R"({"save_strategy": "no", "warmup_ratio": 0.5, "resume_from_checkpoint": true})",
           R"({"save_strategy": "no", "warmup_ratio": 0.5, "warmup_steps": 3})",
           R"({"save_strategy": "no", "adam_beta1": 1})",
           R"({"ddp_timeout": 0, "seed": 1})",
           R"({"save_strategy": "no", "limit_train_batches": 1.5})",
           R"({"save_strategy": "no", "logging_strategy": "steps", "logging_steps": 1.5})",
           R"({"save_strategy": "no", "fp16": true, "bf16": true})",
           R"({"save_strategy": "no", "report_to": "csv"})",
           R"({"save_strategy": "no", "lr_scheduler_type": "reduce_lr_on_plateau"})",
           R"({"output_dir": "a", "save_strategy": "best"})",
           R"({"output_dir": "a", "save_strategy": "best", "metric_for_best_model": "f1"})",
           R"({"output_dir": "a", "load_best_model_at_end": true, "eval_strategy": "epoch"})",
           R"({"output_dir": "a", "load_best_model_at_end": true, "eval_strategy": "steps",
               "save_strategy": "steps", "save_steps": 0.3, "eval_steps": 0.1})",
           R"({"output_dir": "a", "load_best_model_at_end": true, "eval_strategy": "steps",
               "save_strategy": "steps", "save_steps": 5, "eval_steps": 2})",
           R"({"output_dir": "a", "load_best_model_at_end": true, "eval_strategy": "steps",
               "save_strategy": "steps", "save_steps": 0.5, "eval_steps": 2})"}));
}

Parser arguments_yaml() {
  return arguments_parser(
      "arguments_yaml", "file.yaml",
      samples_of({"output_dir: a\nlearning_rate: 1e-3\neval_strategy: epoch\n"
                  "accelerator_config: {split_batches: true}\n",
                  "output_dir: a\nlabel_names: [a, b]\nno_cuda: true\nmax-steps: 3\ntf32:\n"}));
}

}  // namespace

std::vector<Parser> configuration_parsers() {
  return {accelerate_file(), hparams(), arguments_json(), arguments_yaml()};
}

}  // namespace ladder
