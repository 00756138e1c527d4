// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ladder {

enum class ReduceOp { kSum, kMin, kMax };

// The processes that train together, and what they do together.
//
// Each process is one rank, 0 to world_size - 1. A rank that calls a collective waits
// until all ranks have called the same one: in the same order, with tensors of the same
// dtype. So no collective may stand inside `if (rank == 0)`.
//
// Every wait has a deadline, `timeout()`. A rank that dies or does not come makes the
// others throw DistributedError instead of waiting for ever.
//
// A value: copies share one group, and the last one to go shuts it down, also when an
// exception takes it. That is `destroy_process_group` of the Python tutorials. Not for use
// from several threads at once.
//
// single() is the group of one process. Its collectives change nothing, so a program for
// many ranks runs as it is on one.
//
// Python's counterpart: torch.distributed. Where Python keeps the group in a global, here
// it is passed to whoever needs it.
//
//     const ProcessGroup group = init_process_group(options);
//     auto counts = torch::tensor({correct, seen});
//     group.all_reduce(counts);  // now the sum over all ranks
class ProcessGroup {
 public:
  // What init_process_group fills in.
  struct Setup;
  explicit ProcessGroup(Setup setup);

  // The group of this process alone. Needs no network. `description`: see description().
  static ProcessGroup single(std::string description = "one process");

  int rank() const;              // of this process among all
  int world_size() const;        // number of processes
  int local_rank() const;        // of this process among those of its machine: picks the GPU
  int local_world_size() const;  // processes of this machine

  const std::string& backend() const;      // "single", "gloo", "nccl" or "shm"
  const std::string& description() const;  // who started the ranks and where they meet
  std::chrono::milliseconds timeout() const;

  // In-place over all ranks; every rank gets the result. `tensor` has the same shape on all.
  void all_reduce(torch::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;

  // As all_reduce, but only `root` gets the result. Elsewhere the content of `tensor` is undefined.
  void reduce(torch::Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::kSum) const;

  // Overwrites `tensor` on every rank with that of `root`.
  void broadcast(torch::Tensor& tensor, int root = 0) const;

  // The tensors of all ranks, in rank order. They may differ in size(0), in nothing else; a
  // scalar counts as one row.
  std::vector<torch::Tensor> all_gather(const torch::Tensor& tensor) const;

  // The tensors of all ranks as one, [world_size, ...]. They have one shape, which saves the
  // exchange of sizes that all_gather begins with. To add up a few numbers it takes half the time
  // of Gloo's all_reduce.
  torch::Tensor all_gather_into_tensor(const torch::Tensor& tensor) const;

  // As all_gather, but only `root` gets the tensors; the others get none.
  std::vector<torch::Tensor> gather(const torch::Tensor& tensor, int root = 0) const;

  // Returns when all ranks have called it.
  void barrier() const;

  // The same through the store, not the network of the collectives: when a rank does not come
  // within `timeout` (default: that of the group), every waiting rank throws an error that
  // names the missing ones. Slower than barrier(); for start-up and for finding out who hangs.
  // A rank counts its own calls: one that misses a call must make it up before the next.
  void monitored_barrier() const { monitored_barrier(timeout()); }
  void monitored_barrier(std::chrono::milliseconds timeout) const;

  // Lets go of threads and connections. Waits for nobody. The destructor of the last copy does it.
  void shutdown() const;

 private:
  friend struct C10dAccess;
  struct Impl;
  std::vector<std::int64_t> row_counts(const torch::Tensor& tensor) const;

  std::shared_ptr<Impl> impl_;
};

}  // namespace ladder
