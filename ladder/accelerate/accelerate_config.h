// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/accelerate/accelerator_options.h"
#include "ladder/core/environment.h"
#include "ladder/core/precision.h"
#include "ladder/launch/launch_environment.h"

namespace ladder {

// The configuration of a training under the Accelerator: the variables that `accelerate launch`
// sets, and the file of `accelerate config` if AcceleratorOptions::config_file names it.
//
// Precedence, highest first: the options of the program, the environment, the file, the defaults.
// docs/reference/5-accelerator.md, "Configuration", has an example and two exceptions.

// The kind of processes in the file.
enum class DistributedType {
  kNo,        // one process
  kMultiCpu,  // several, on CPUs
  kMultiGpu,  // several, on GPUs; without GPUs: on the CPU
};

// The settings in force: the defaults, until a source changes them.
struct AccelerateConfig {
  Precision mixed_precision = Precision::kFp32;  // the file and the variable call kFp32 "no"
  int gradient_accumulation_steps = 1;           // batches per optimizer step
  bool use_cpu = false;                          // use the CPU even if GPUs are present
  bool debug = false;                            // check shapes before collectives
  std::string device;                            // such as "cuda:1"; "" = not set
  bool fork_launched = false;  // a launcher forked this process, and owns the process group
  bool cpu_affinity = false;   // without effect, with a note

  // From the file. Ranks follow launch_environment.h, whatever the file contains.
  DistributedType distributed_type = DistributedType::kNo;
  std::optional<int> num_processes;  // of all machines
  int num_machines = 1;
  int machine_rank = 0;                  // of this machine, from 0
  std::string main_process_ip;           // the address of machine 0; "" = not set
  std::optional<int> main_process_port;  // 0 picks a free one
  std::string gpu_ids = "all";           // "all", or "0,1"

  std::vector<std::string> notes;  // for the log: settings that are overridden or ignored
};

// Reads the file that `accelerate config` writes, as YAML or JSON; see io/yaml.h for the limits.
//
// The keys are those of the Python package; unknown ones are refused. Sections for features that
// this library lacks, such as deepspeed_config, must be empty. Keys that only `accelerate launch`
// needs are ignored. Stricter than Python: a key may occur once, numbers must be numbers, and
// distributed_type must be one of DistributedType. More lenient: a bare `no` is the precision no.
//
// Throws UsageError (exit code 2) that begins with file and line and names the key.
void read_config_file(const std::string& path, AccelerateConfig& config);
// The same for bytes in memory; `name` begins the messages.
void parse_config_file(std::string_view bytes, const std::string& name, AccelerateConfig& config);

// Reads the variables that `accelerate launch` and users set, ACCELERATE_MIXED_PRECISION and so on:
// a column of the table in accelerate_config.cpp.
//
// ACCELERATE_DYNAMO_BACKEND must be "no", and ACCELERATE_USE_DEEPSPEED, _USE_FSDP, _USE_MEGATRON_LM
// and _USE_PARALLELISM_CONFIG must not be true. An empty variable counts as unset. UsageError names
// the variable.
void read_accelerate_environment(AccelerateConfig& config,
                                 const VariableLookup& lookup = environment_variable);

// The configuration of a program with these options: file, environment and options in the order
// above. Throws UsageError.
AccelerateConfig accelerate_config(const AcceleratorOptions& options,
                                   const VariableLookup& lookup = environment_variable);

// What a file is that has this key, such as "a configuration of DeepSpeed". Empty for a key that
// names no other kind of file.
std::string_view file_with_key(std::string_view key);

// "no", "fp16" or "bf16", in upper or lower case. Throws UsageError, which begins with `where`, for
// everything else, fp8 included.
Precision parse_mixed_precision(std::string_view where, std::string_view text);
// The reverse: "no" for kFp32.
std::string mixed_precision_name(Precision precision);

}  // namespace ladder
