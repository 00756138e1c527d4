// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ladder {

enum class ReduceOp { kSum, kMin, kMax };

// A transfer that ProcessGroup::isend or irecv has started, as PyTorch's Work.
class [[nodiscard]] Work {
 public:
  explicit Work(std::function<void()> wait) : wait_(std::move(wait)) {}
  // Blocks until the tensor is sent, or received, at most for the group's timeout, which Gloo
  // counts from irecv on. After an error, a second call throws as well.
  void wait() {
    wait_();
    wait_ = [] {};
  }

 private:
  std::function<void()> wait_;
};

// The processes of one training, and their collectives.
//
// Each process is one rank, 0 to world_size - 1. A collective blocks until all ranks have called
// the same one: in the same order, with tensors of the same dtype. So no collective may stand
// inside `if (rank == 0)`.
//
// Every wait ends after `timeout()`: if a rank ends or is late, the others throw DistributedError.
// Errors of this rank, such as an invalid argument or too little memory, keep LibTorch's type. A
// tensor that is undefined or sparse is a UsageError.
//
// A value: copies share one group. The destructor of the last one shuts it down, after an exception
// too, as Python's destroy_process_group. Not thread-safe,
// except in shared memory.
//
// single() is the group of one process. Its collectives change nothing, so a program for
// many ranks also runs on one.
//
// Python's counterpart: torch.distributed. There the group is a global, here an argument.
//
//     const ProcessGroup group = init_process_group(options);
//     auto counts = torch::tensor({correct, seen});
//     group.all_reduce(counts);  // now the sum over all ranks
class ProcessGroup {
 public:
  struct Setup;  // see c10d_group.h
  explicit ProcessGroup(Setup setup);

  // A group of one process, without network.
  static ProcessGroup single(std::string description = "one process");

  int rank() const;              // 0 to world_size() - 1
  int world_size() const;        // number of processes
  int local_rank() const;        // of the ranks on this machine: the number of the GPU
  int local_world_size() const;  // ranks on this machine

  const std::string& backend() const;      // "single", "gloo", "nccl" or "shm"
  const std::string& description() const;  // launcher and store, for the log
  std::chrono::milliseconds timeout() const;

  // In place, with the result on all ranks. `tensor` has the same shape on all; its strides may
  // differ. The sum of flags (bool) is whether any is set. A NaN of any rank is the sum; Gloo's
  // minimum and maximum may ignore it.
  void all_reduce(torch::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;
  // With a deadline of its own, for ranks that may come late: `timeout` instead of the group's.
  void all_reduce(torch::Tensor& tensor, ReduceOp op, std::chrono::milliseconds timeout) const;

  // As all_reduce, with the result on `root` only; on other ranks `tensor` is undefined.
  void reduce(torch::Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::kSum) const;

  // Overwrites `tensor` on all ranks with that of `root`.
  void broadcast(torch::Tensor& tensor, int root = 0) const;

  // The tensors of all ranks, in rank order. They may differ in size(0), in nothing else
  // (DistributedError); a scalar counts as one row.
  std::vector<torch::Tensor> all_gather(const torch::Tensor& tensor) const;

  // The tensors of all ranks, of one shape, as one: [world_size, ...]. Saves the exchange of sizes
  // in all_gather; for the sum of a few numbers it takes half the time of Gloo's all_reduce.
  torch::Tensor all_gather_into_tensor(const torch::Tensor& tensor) const;

  // The same into `output`, of world_size times as many elements as `input`, which may be this
  // rank's part of it. Throws UsageError for another size, dtype or device.
  void all_gather_into_tensor(torch::Tensor& output, const torch::Tensor& input) const;

  // As all_gather, with the tensors on `root` only; the result is empty on other ranks.
  std::vector<torch::Tensor> gather(const torch::Tensor& tensor, int root = 0) const;

  // `tensor` is [world_size, ...]. Returns its row `rank()`, [...], reduced over all ranks. Throws
  // DistributedError if the shapes or dtypes of the ranks differ.
  torch::Tensor reduce_scatter(const torch::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;

  // Returns when all ranks have called it.
  void barrier() const;

  // Point to point: from this rank to rank `dst`, or to this rank from rank `src`, and no other
  // takes part. `tensor` has the same dtype and shape on both, else recv throws DistributedError;
  // NCCL alone does not compare them. Messages between two ranks keep their order.
  void send(const torch::Tensor& tensor, int dst) const { isend(tensor, dst).wait(); }
  void recv(torch::Tensor& tensor, int src) const { irecv(tensor, src).wait(); }

  // The same without waiting. Do not write to the tensor of isend, nor use that of irecv, before
  // wait() has returned. Two ranks that send to each other begin with isend. In shared memory, more
  // than 2 MB move only while both ranks are in calls of the group, such as wait().
  Work isend(const torch::Tensor& tensor, int dst) const;
  Work irecv(torch::Tensor& tensor, int src) const;

  // The same through the store instead of the backend: if ranks are missing after `timeout`
  // (default: that of the group), each waiting rank throws an error that names them. Slower than
  // barrier(); for start-up and to find a rank that hangs. Each rank counts its own calls: one that
  // missed a call must make it before the next.
  void monitored_barrier() const { monitored_barrier(timeout()); }
  void monitored_barrier(std::chrono::milliseconds timeout) const;

  // Releases threads and connections without waiting. The last copy's destructor calls it.
  void shutdown() const;

 private:
  friend struct C10dAccess;
  struct Impl;
  std::vector<std::int64_t> row_counts(const char* operation, const torch::Tensor& tensor) const;

  std::shared_ptr<Impl> impl_;
};

}  // namespace ladder
