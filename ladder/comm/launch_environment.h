// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "ladder/core/environment.h"

namespace ladder {

// Who started this process, as which rank of how many, and where the ranks meet.
//
// A launcher starts N processes of one program and tells each its place through environment
// variables. Each launcher has its own names for the same four numbers and two words:
//
//   launcher                 rank, world size      local rank, local size       address, port
//   torchrun, accelerate,    RANK                  LOCAL_RANK                   MASTER_ADDR
//     spawn, by hand (env)   WORLD_SIZE            LOCAL_WORLD_SIZE             MASTER_PORT
//   srun                     SLURM_PROCID          SLURM_LOCALID                first host, 15000 +
//                            SLURM_STEP_NUM_TASKS  SLURM_STEP_TASKS_PER_NODE    end of the job id
//   mpirun of Open MPI       OMPI_COMM_WORLD_RANK  OMPI_COMM_WORLD_LOCAL_RANK   127.0.0.1, 29500
//                            OMPI_COMM_WORLD_SIZE  OMPI_COMM_WORLD_LOCAL_SIZE
//     of MVAPICH2            MV2_COMM_WORLD_*, as in Open MPI
//     of MPICH, Intel (PMI)  PMI_RANK, PMI_SIZE    MPI_LOCALRANKID, ..NRANKS
//
// MASTER_ADDR and MASTER_PORT, where set, say the address under srun and mpirun too. With several
// machines under mpirun, MASTER_ADDR must be set. With one, the address is 127.0.0.1.
//
// Precedence, the first that is there: the options; RANK and its family; srun; mpirun; nobody,
// which is rank 0 of 1. MASTER_ADDR and MASTER_PORT alone launch nothing: they only say where.
//
// What contradicts itself is refused, never guessed: options against variables, RANK against the
// ranks of srun or mpirun. One launcher may stand inside another in three ways:
//   - srun or mpirun starts one task: it only carried the process to its machine;
//   - srun or mpirun starts a torchrun on each machine (GROUP_WORLD_SIZE, torchrun's number of
//     machines, is then above 1), or a script that starts LOCAL_WORLD_SIZE ranks by hand;
//   - mpirun starts its daemons through srun: then mpirun's numbers count.
// So mpirun inside torchrun, and two torchrun that do not know each other, are refused.
//
// SLURM variables count only inside a step of srun. A batch script and the shell of salloc have
// SLURM_NTASKS=4 too, and SLURM_PROCID=0 as if they were the first of four; waiting there for the
// other three is a classic hang. They have no SLURM_STEP_ID, or a reserved one. In a shell of
// `srun --pty bash` (SLURM_PTY_PORT, and a job named like a shell) a program is alone; if that
// step has several tasks, nobody can tell, and the error says what to type. The job name
// "interactive" says nothing: a true srun in a shell of salloc inherits it.
struct LaunchEnvironment {
  std::string launcher = "single";        // or a name of the table, or "options"
  int rank = 0;                           // of all processes, 0 to world_size - 1
  int world_size = 1;                     // number of processes
  int local_rank = 0;                     // among those on this machine: which GPU is mine
  int local_world_size = 1;               // processes on this machine
  std::string master_addr = "127.0.0.1";  // where rank 0's store is, or the agent's
  int master_port = 29500;
  bool use_agent_store = false;  // torchrun serves the store already: no rank may open one
  int restart_count = 0;         // how often torchrun has restarted the ranks
  std::optional<int> listen_fd;  // LADDER_LISTEN_FD: spawn's socket for the store; on rank 0 alone,
                                 // so that spawn's other ranks say "env"
  std::string variables;         // what this was read from: "RANK, WORLD_SIZE, ..."

  // Are all ranks on this machine? Then nothing needs to listen to the network.
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
  bool needs_address = true;               // false: the ranks meet elsewhere, such as in a file
  std::string program = "PROGRAM";         // its name in the commands that errors propose
  std::string torchrun = "torchrun";       // and torchrun's
};

// Returns the value of a variable, or nothing. Tests pass a table instead of the environment.
using VariableLookup = std::function<std::optional<std::string>(const std::string&)>;

// Reads the environment as told above.
//
// Local rank and size that nobody says: if the ranks meet at a loopback address, or in a file, all
// are on this machine, and the local rank is the rank; otherwise, and in a Kubernetes pod, this
// rank is alone on its machine (a Kubeflow PyTorchJob names pods, one rank each). If only
// LOCAL_RANK is said, the local size is the smallest that fits; if only LOCAL_WORLD_SIZE is, ranks
// are taken to fill one machine after the other.
//
// Throws UsageError when variables are half set (it names all that are missing and commands that
// set them), hold no number, are out of range, or contradict each other or the options.
LaunchEnvironment read_launch_environment(const LaunchOptions& options = {},
                                          const VariableLookup& lookup = environment_variable);

// The same for a program that makes no sense alone. Throws UsageError when nobody launched it:
// the message lists the missing variables and three commands that work.
LaunchEnvironment require_launcher(const LaunchOptions& options = {},
                                   const VariableLookup& lookup = environment_variable);

}  // namespace ladder
