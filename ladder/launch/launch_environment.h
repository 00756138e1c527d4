// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "ladder/core/environment.h"

namespace ladder {

// The launch of this process: launcher, rank, world size and rendezvous address.
//
// A launcher starts N processes of one program and passes each its rank in environment variables:
// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, or those of srun and
// mpirun (kLauncherVariables), which launchers/ reads. docs/reference/3-ddp-torchrun.md, "Launcher
// variables", has the table. MASTER_ADDR and MASTER_PORT alone launch nothing.
//
// Precedence, highest first: options; RANK and its family; srun; mpirun; no launcher (rank 0 of 1).
//
// Contradictions are refused: options against variables, RANK against the ranks of srun or mpirun.
// A launcher may run inside another in three ways:
//   - srun or mpirun starts one task;
//   - srun or mpirun starts one torchrun per machine (GROUP_WORLD_SIZE, torchrun's number of
//     machines, is above 1), or a script that starts LOCAL_WORLD_SIZE ranks by hand;
//   - mpirun starts its daemons through srun: mpirun's numbers count.
//
// SLURM variables count only inside a step of srun, which batch scripts and the shell of salloc are
// not. A shell of `srun --pty bash` counts as no launcher if its step has one task, and as an error
// with several.
struct LaunchEnvironment {
  std::string launcher = "single";        // or a name of the table, or "options"
  int rank = 0;                           // of all processes, 0 to world_size - 1
  int world_size = 1;                     // number of processes
  int local_rank = 0;                     // of those on this machine: the number of the GPU
  int local_world_size = 1;               // processes on this machine
  std::string master_addr = "127.0.0.1";  // of the store, rank 0's or torchrun's
  int master_port = 0;                    // 0, if nothing launched this process, picks a free one
  bool use_agent_store = false;           // torchrun serves the store: no rank may open one
  int restart_count = 0;                  // restarts of the ranks by torchrun
  std::optional<int> listen_fd;  // LADDER_LISTEN_FD: spawn's socket for the store. Only rank 0 has
                                 // it, so `launcher` of spawn's other ranks is "env"
  std::string variables;         // the sources: "RANK, WORLD_SIZE, ..."

  // Whether all ranks are on this machine: no socket has to listen on the network.
  bool is_single_node() const { return local_world_size == world_size; }

  // For the log: "rank 0 of 2, local rank 0 of 2, by torchrun (RANK, WORLD_SIZE, MASTER_ADDR,
  // MASTER_PORT), store 127.0.0.1:29500".
  std::string description() const;
};

struct LaunchOptions {
  std::optional<int> rank;
  std::optional<int> world_size;
  std::optional<std::string> master_addr;  // a host name or address
  std::optional<int> master_port;          // 1 to 65535
  bool needs_address = true;               // false: another rendezvous, such as a file
  bool may_be_single = true;               // false: hints propose no single process
  std::string program = "PROGRAM";         // its name in the commands of hints
  std::string torchrun = "torchrun";       // torchrun's path in them
};

// Returns the value of a variable, or nothing. Tests pass a table instead of the environment.
using VariableLookup = std::function<std::optional<std::string>(const std::string&)>;

// Reads the launch.
//
// Without variables for local rank and local size: if the address is a loopback address, or not
// needed, all ranks are on this machine; otherwise, and in a Kubernetes pod, this rank is the only
// one on its machine (a Kubeflow PyTorchJob has one rank per pod). With LOCAL_RANK only, the local
// size is WORLD_SIZE in the first case, else the smallest that fits; with LOCAL_WORLD_SIZE only,
// ranks fill one machine after another.
//
// Throws UsageError if variables are incomplete (it names all that are missing, and commands that
// set them), malformed, out of range, or contradict each other or the options.
LaunchEnvironment read_launch_environment(const LaunchOptions& options = {},
                                          const VariableLookup& lookup = environment_variable);

// The same for a program that needs a launcher. Throws UsageError without one: the message lists
// the missing variables and three commands that work.
LaunchEnvironment require_launcher(const LaunchOptions& options = {},
                                   const VariableLookup& lookup = environment_variable);

}  // namespace ladder
