// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ladder {

// Options of init_process_group; all but `rank` are equal on all ranks.
struct ProcessGroupOptions {
  std::string backend = "auto";               // gloo, nccl or shm: see init_process_group
  std::string init_method = "env://";         // or tcp://HOST:PORT, file:///PATH; HOST may be [::1]
  std::optional<int> rank;                    // of this process; default: the launcher's
  std::optional<int> world_size;              // number of processes; default: the launcher's
  std::chrono::milliseconds timeout{60'000};  // of every wait, start-up included
  bool require_launcher = false;              // UsageError without a launcher, instead of one rank
  std::string device = "auto";                // device of the tensors, as for choose_device
  std::string program = "PROGRAM";            // its name in the commands of hints
  std::string torchrun = "torchrun";          // torchrun's path in them
  // Settings of the run by name, such as {"--seed", "42"}: DistributedError on all ranks if one has
  // another value. Ranks with other data or another network would train without an error.
  std::map<std::string, std::string> settings;
};

// Names of the backends in this program, for options and their help texts: those of LibTorch, and
// those that add_backend added (backends.h).

// By name, the condition under which "auto" selects it: "on one machine", or "".
std::map<std::string, std::string>& backend_names();

// The values of ProcessGroupOptions::backend: auto, gloo, nccl, ...
std::vector<std::string> backend_choices();

// "nccl with one GPU per rank, shm on one machine"
std::string automatic_backends();

}  // namespace ladder
