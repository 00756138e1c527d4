// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/comm/launch_environment.h"
#include "ladder/core/environment.h"
#include "ladder/core/precision.h"

namespace ladder {

// How a training under the Accelerator is set up, and who says so.
//
// In Python, `accelerate config` asks its questions once and writes a YAML file; `accelerate
// launch` reads the file, starts the processes and tells each the answers through environment
// variables; `Accelerator(...)` in the script reads those. Here the program takes the third part,
// and can do the second for itself: with `--config_file` it reads the same file, unchanged.
//
// Three sources, and below them the defaults. For each setting the first source that says it wins:
//
//   1. the options of the program:       AcceleratorOptions, --mixed_precision
//   2. the environment:                  ACCELERATE_MIXED_PRECISION
//   3. the configuration file:           mixed_precision: bf16
//
// As in the Python package, version 1.15, two settings differ:
//   - ACCELERATE_GRADIENT_ACCUMULATION_STEPS wins over the option;
//   - use_cpu is true if the option or ACCELERATE_USE_CPU says true: a false takes nothing back.
// In Python the file stands above the variables of the shell, because `accelerate launch` writes
// its answers over them; started by it, this program sees those answers as its environment.

// What the file says of the processes.
enum class DistributedType {
  kNo,        // one process
  kMultiCpu,  // several, on CPUs
  kMultiGpu,  // several, on GPUs; without GPUs: on the CPU
};

// What one source says. What it does not say is empty.
struct AccelerateSettings {
  std::optional<Precision> mixed_precision;        // no, fp16, bf16
  std::optional<int> gradient_accumulation_steps;  // backward passes a step, at least 1
  std::optional<bool> use_cpu;                     // the CPU although there are GPUs
  std::optional<bool> debug;                       // check shapes before collectives
  std::optional<std::string> device;               // the environment: ACCELERATE_TORCH_DEVICE
  std::optional<bool> fork_launched;               // the environment: FORK_LAUNCHED
  std::optional<bool> cpu_affinity;                // the environment or the file

  std::optional<DistributedType> distributed_type;  // the rest is said by the file alone
  std::optional<int> num_processes;                 // of all machines
  std::optional<int> num_machines;                  //
  std::optional<int> machine_rank;                  // which machine this is, from 0
  std::optional<std::string> main_process_ip;       // the address of machine 0
  std::optional<int> main_process_port;             // 0: any free one
  std::optional<std::string> gpu_ids;               // "all", or "0,1"
};

struct AccelerateSources {
  AccelerateSettings options;      // from the program's own code or command line
  AccelerateSettings environment;  // from read_accelerate_environment()
  AccelerateSettings file;         // from read_config_file(); empty without --config_file
};

// The settings that hold.
struct AccelerateConfig {
  Precision mixed_precision = Precision::kFp32;  // the file and the variable call kFp32 "no"
  int gradient_accumulation_steps = 1;           // backward passes a step of the optimizer
  bool use_cpu = false;                          // the CPU although there are GPUs
  bool debug = false;                            // check shapes before collectives
  std::string device;                            // such as "cuda:1"; "" if nobody names one
  bool fork_launched = false;  // a launcher forked this process, and owns the process group

  DistributedType distributed_type = DistributedType::kNo;  // of the file
  std::optional<int> num_processes;  // of the file; the environment of launch_environment.h counts
  int num_machines = 1;              // of the file
  int machine_rank = 0;              // of the file
  std::string main_process_ip;       // of the file; "" if it names none
  std::optional<int> main_process_port;  // of the file; 0 is any free one
  std::string gpu_ids = "all";           // of the file: "all", or "0,1"

  std::vector<std::string> notes;  // for the log: what was overruled, or has no effect here
};

// Reads the file that `accelerate config` writes, as YAML or JSON; see yaml_file.h for the limits.
//
// The keys are those of the Python package; an unknown one is refused there and here. Sections for
// what this library does not do (deepspeed_config, fsdp_config, megatron_lm_config, fp8_config,
// parallelism_config, mpirun_config, a dynamo_config with a backend, what is for TPUs) may be there
// as long as they are empty; the same goes for the distributed types beyond DistributedType. What
// only `accelerate launch` needs (rdzv_backend, same_network, main_training_function) is passed
// over. Stricter than Python: a key may stand there once, and numbers are numbers. More lenient: a
// bare `no` is the precision no; Python takes it for false and stops.
//
// Throws UsageError (exit code 2) that begins with file and line and names the key.
AccelerateSettings read_config_file(const std::string& path);
// The same for bytes in memory; `name` begins the messages.
AccelerateSettings parse_config_file(std::string_view bytes, const std::string& name);

// Reads what `accelerate launch` and users set:
//
//   ACCELERATE_MIXED_PRECISION              no, fp16, bf16
//   ACCELERATE_GRADIENT_ACCUMULATION_STEPS  a whole number
//   ACCELERATE_USE_CPU                      a flag; the launcher sets it for one process alone
//   ACCELERATE_DEBUG_MODE                   a flag
//   ACCELERATE_CPU_AFFINITY                 a flag; has no effect here, and a note says so
//   ACCELERATE_TORCH_DEVICE                 a device, such as cuda:1
//   FORK_LAUNCHED                           a flag; set by Python's notebook_launcher
//
// ACCELERATE_DYNAMO_BACKEND must be "no", and ACCELERATE_USE_DEEPSPEED, _USE_FSDP, _USE_MEGATRON_LM
// and _USE_PARALLELISM_CONFIG must not be true: nothing here compiles a model or shards one. Rank
// and address are read by launch_environment.h, OMP_NUM_THREADS by threads.h. A variable that is
// set to nothing counts as unset. Throws UsageError naming the variable.
AccelerateSettings read_accelerate_environment(const VariableLookup& lookup = environment_variable);

// Applies the rule above. Throws UsageError for numbers that contradict each other.
AccelerateConfig resolve_accelerate_config(const AccelerateSources& sources);

// "no", "fp16" or "bf16", in upper or lower case; `where` begins the message of the UsageError for
// everything else, fp8 included.
Precision parse_mixed_precision(std::string_view where, std::string_view text);
// The reverse: "no" for kFp32.
std::string mixed_precision_name(Precision precision);

// A flag by Python's rule: y, yes, t, true, on, 1 or n, no, f, false, off, 0, in upper or lower
// case. Throws UsageError, which begins with `where`, for everything else.
bool parse_bool(std::string_view where, std::string_view text);

}  // namespace ladder
