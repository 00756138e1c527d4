// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ladder/comm/process_group.h"
#include "ladder/comm/process_group_options.h"

namespace ladder {

// Connects this process to the other ranks and returns the group of all of them. Blocks until all
// ranks have called it, or until the timeout.
//
// Rank and world size come from the environment of the launcher (torchrun, accelerate, srun,
// mpirun, spawn, or a user; see launch_environment.h). Without a launcher the result of "auto" is
// ProcessGroup::single(); another backend gets a store at a free port. The ranks rendezvous in a
// store:
//
//   env://            at MASTER_ADDR:MASTER_PORT; torchrun serves it, otherwise rank 0 opens it
//   tcp://HOST:PORT   at that address
//   file:///PATH      in a file that all ranks can write; a new one for each run
//
// Backends (docs/reference/2-ddp-spawn.md has the ways of the tensors): nccl, gloo, shm if linked,
// and auto: nccl if CUDA finds a GPU for each rank; else shm if up to 8 ranks share a machine; else
// gloo.
//
// On one machine all sockets listen on the loopback interface only. Otherwise each rank listens at
// its address towards MASTER_ADDR (or at the interface in GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME),
// without encryption or password, as in PyTorch: use a trusted network.
//
// From then on the process gets SIGTERM when its launcher, if that is its parent, is killed. A
// second group in the same process needs tcp:// or file://, and under torchrun another address.
//
// Throws UsageError if the environment is incomplete or contradicts the options, for "nccl" with
// fewer GPUs than ranks, and for "shm" without shared memory. Throws DistributedError if ranks are
// missing after the timeout (it names them), differ in their settings, or appear twice.
//
// Python's counterpart: torch.distributed.init_process_group.
ProcessGroup init_process_group(const ProcessGroupOptions& options = {});

}  // namespace ladder
