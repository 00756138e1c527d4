// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "ladder/comm/process_group.h"

namespace ladder {

// The one place where LibTorch's own process group is visible: parallel/ hands it to
// c10d::Reducer. All other code uses ladder::ProcessGroup.

using C10dGroup = c10::intrusive_ptr<c10d::ProcessGroup>;
using C10dStore = c10::intrusive_ptr<c10d::Store>;

// The group inside `group`; never null. Valid as long as `group` is.
C10dGroup c10d_group(const ProcessGroup& group);

struct ProcessGroup::Setup {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string backend = "single";        // single, gloo, nccl or shm
  std::string description;               // for the log
  std::chrono::milliseconds timeout{0};  // of every wait
  C10dStore store;                       // where the ranks meet
  std::string gloo_interface;            // network interface, "eth0"; empty = use gloo_address
  std::string gloo_address;              // this machine's address for the other ranks
};

// Builds what Python's init_process_group builds: a group with one backend for each kind of
// device. "gloo" serves CPU and CUDA tensors (the latter by way of host memory); "nccl" serves
// CUDA tensors and leaves CPU tensors to Gloo; "shm" is Gloo with a SharedMemory, and becomes
// "gloo" in `setup` where the ranks share no memory. Waits for all ranks.
C10dGroup make_c10d_group(ProcessGroup::Setup& setup);

// Returns when `ranks` ranks have called it with this `key`, or after two seconds; throws nothing.
// For ranks that may end next: the store may be in this process, and the others still read from it.
void exit_barrier(c10d::Store& store, const std::string& key, std::size_t ranks);

// Runs `talk`, a conversation with a store, and throws DistributedError naming `address` if it does
// not end within `timeout` and a few seconds. c10d's stores keep no deadline with a server that is
// there and silent; so the conversation has a thread of its own, which is then left behind.
// What `talk` captures must therefore outlive it: capture by value.
void run_with_deadline(std::chrono::milliseconds timeout, const std::string& address,
                       std::function<void()> talk);

// Runs `collective` and turns what goes wrong in it into a DistributedError.
void run_collective(const ProcessGroup& group, const char* operation,
                    const std::function<void()>& collective);

// LibTorch logs what it is about to throw, with a stack trace of forty lines. As long as one of
// these lives it does not, unless TORCH_CPP_LOG_LEVEL asks for it.
class C10dLogSilencer {
 public:
  C10dLogSilencer();
  ~C10dLogSilencer();
  C10dLogSilencer(const C10dLogSilencer&) = delete;
  C10dLogSilencer& operator=(const C10dLogSilencer&) = delete;

 private:
  int before_;
};

// Waits until all `keys`, one a rank in rank order, are in the store. Returns the ranks whose key
// did not come in time: none when all is well. Then it gives the others a moment to find out as
// well, as the store may be in this process. Throws DistributedError when the store is gone.
std::vector<int> wait_for_keys(c10d::Store& store, const std::vector<std::string>& keys,
                               std::chrono::milliseconds timeout);

}  // namespace ladder
