// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace ladder {

// How this process finds the others. All ranks give the same, but for `rank`.
struct ProcessGroupOptions {
  std::string backend = "auto";               // gloo, nccl or shm: see init_process_group
  std::string init_method = "env://";         // or tcp://HOST:PORT, file:///PATH
  std::optional<int> rank;                    // of this process; unset = as the launcher says
  std::optional<int> world_size;              // number of processes; unset = as the launcher says
  std::chrono::milliseconds timeout{60'000};  // deadline of every wait, start-up included
  bool require_launcher = false;              // started by nobody: an error, instead of one rank
  std::string device = "auto";                // where the tensors will lie, as for choose_device
  std::string program = "PROGRAM";            // its name in commands that errors propose
  std::string torchrun = "torchrun";          // and torchrun's
};

}  // namespace ladder
