// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ladder/comm/process_group.h"
#include "ladder/comm/process_group_options.h"

namespace ladder {

// Meets the other ranks and returns the group of all of them. Waits until all are there.
//
// Who and how many they are is read from the environment that the launcher set (torchrun,
// accelerate, srun, mpirun, our own spawn, or a person by hand; see launch_environment.h);
// started without any of them, the process is alone and gets ProcessGroup::single().
// They meet in a store:
//
//   env://            at MASTER_ADDR:MASTER_PORT. Under torchrun that store exists already;
//                     otherwise rank 0 opens it
//   tcp://HOST:PORT   the same, given here
//   file:///PATH      in a file that all ranks can write; a new one for each run
//
// Who carries the tensors afterwards:
//
//   nccl   CUDA tensors from GPU to GPU, one GPU a rank; CPU tensors go by Gloo
//   gloo   everything, over sockets; CUDA tensors by way of host memory
//   shm    as gloo, but ranks of one machine reduce and gather CPU tensors in memory that they
//          share: see shared_memory.h. Sums are in rank order. Gloo's ring begins elsewhere for
//          each part of a tensor, so with three and more ranks other last bits
//   auto   nccl where each rank has a GPU of its own; else shm where up to 8 ranks share a
//          machine; else gloo
//
// When all ranks are on one machine, nothing of this listens outside the loopback interface.
// Otherwise each rank listens at the address that faces MASTER_ADDR (or at the interface in
// GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), unencrypted and without a password, as PyTorch does:
// use a network you trust.
//
// From here on the process ends with the launcher that started it (torchrun, accelerate, mpirun,
// srun): it gets SIGTERM when that is killed. Linux only tells it of its parent, so a script
// between the two must wait for it.
//
// One such group at a time: a second one in the same process must meet elsewhere, with tcp:// or
// file://, and under torchrun after the first it is taken for a second process of the same rank.
//
// Throws UsageError when the environment is incomplete or contradicts the options, and when
// "nccl" is asked for with fewer GPUs than ranks, or "shm" where no memory is shared. Throws
// DistributedError when ranks do not come within the timeout (it names them), disagree about their
// number, or come twice.
//
// Python's counterpart: torch.distributed.init_process_group.
ProcessGroup init_process_group(const ProcessGroupOptions& options = {});

}  // namespace ladder
