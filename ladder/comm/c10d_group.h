// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ladder/comm/process_group.h"

namespace ladder {

// LibTorch's own process group, for c10d::Reducer in parallel/. Other folders use
// ladder::ProcessGroup.

using C10dGroup = c10::intrusive_ptr<c10d::ProcessGroup>;
using C10dStore = c10::intrusive_ptr<c10d::Store>;

// The group inside `group`; never null. Valid as long as `group` is.
C10dGroup c10d_group(const ProcessGroup& group);

struct DeviceBackends {
  c10::intrusive_ptr<c10d::Backend> cpu;
  c10::intrusive_ptr<c10d::Backend> cuda;
  c10d::ProcessGroup::BackendType cpu_type = c10d::ProcessGroup::BackendType::GLOO;
  c10d::ProcessGroup::BackendType cuda_type = c10d::ProcessGroup::BackendType::GLOO;
};

// Waits for all ranks.
using MakeBackends = DeviceBackends (*)(ProcessGroup::Setup& setup, const C10dStore& store);

// Collectives of one rank: nothing to exchange.
DeviceBackends make_single(ProcessGroup::Setup& setup, const C10dStore& store);

// The result of an operation that has ended.
c10::intrusive_ptr<c10d::Work> completed(const std::vector<at::Tensor>& tensors);

// Of a backend that can move a tensor to memory that all ranks map (share_memory).
class SharesTensors {
 public:
  virtual ~SharesTensors() = default;
  // A collective. Does nothing for a tensor that an exchange serves as well.
  virtual void share(const at::Tensor& tensor) = 0;
};

struct ProcessGroup::Setup {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string backend = "single";        // a row of backends.h
  MakeBackends make = make_single;       // of that row
  std::string description;               // for the log
  std::chrono::milliseconds timeout{0};  // of every wait
  C10dStore store;                       // of the rendezvous
  std::string address = "rank 0";        // of the store, for errors; the path of a file
  std::string gloo_interface;            // network interface, "eth0"; empty = use gloo_address
  std::string gloo_address;              // this machine's address for the other ranks
};

// Builds what Python's init_process_group builds: a group with one backend per device type. "gloo"
// serves CPU and CUDA tensors (the latter through host memory); "nccl" serves CUDA tensors, and
// Gloo then serves CPU tensors. Waits for all ranks.
C10dGroup make_c10d_group(ProcessGroup::Setup& setup);

// Runs `operations` on a store, and throws DistributedError naming `address` if they do not end
// within `timeout` and four seconds. c10d's stores have no deadline for a server that accepts and
// then sends nothing, so the operations run in a second thread. That is joined, unless the deadline
// runs out: then it stays blocked until the server answers or ends, or this process does. It owns
// what it uses (`operations` must capture by value) and writes no global. LibTorch logs nothing
// meanwhile, unless TORCH_CPP_LOG_LEVEL is set.
void run_with_deadline(std::chrono::milliseconds timeout, const std::string& address,
                       std::function<void()> operations);

// Waits until all `keys`, one per rank in rank order, are in the store. Returns the ranks whose key
// is missing after `timeout`, if any; before that, waits in exit_barrier for the others that found
// it out. Throws DistributedError naming `address` if the store is gone. Call it in
// run_with_deadline.
std::vector<int> wait_for_keys(c10d::Store& store, const std::vector<std::string>& keys,
                               std::chrono::milliseconds timeout, const std::string& address);

// Returns when `ranks` ranks have called it with this `key`, or after two seconds; throws nothing.
// For ranks that may end next: the store may be in this process, and the others still read from it.
// Call it in run_with_deadline.
void exit_barrier(c10d::Store& store, const std::string& key, std::size_t ranks);

// Moves the memory of `tensors`, contiguous and of equal sizes on all ranks, to where all_reduce
// and all_gather_into_tensor of the group work in place; tensors that share it move with it. Does
// nothing without shared memory, for tensors on GPUs, and for those of one piece at most, which an
// exchange serves as well. A collective.
void share_memory(const ProcessGroup& group, const std::vector<at::Tensor>& tensors);

// Whether a collective is done when its call returns, so that nothing is won by starting it early:
// that of a backend in shared memory.
bool is_synchronous(const ProcessGroup& group);

// Runs `collective`. Throws DistributedError if it lost another rank (see failure_kind.h). Errors
// of this rank, such as an invalid argument or too little memory, keep their type and text.
void run_collective(const ProcessGroup& group, const std::string& operation,
                    const std::function<void()>& collective);

}  // namespace ladder
