// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ladder/comm/process_group.h"

namespace ladder {

// Data-parallel training requires equal replicas of the model on all ranks. The checks are
// collectives: one small all-gather of hashes if the replicas are equal. If not, every rank throws
// the same DistributedError, which names the first tensor that differs.

// Names, shapes, strides and dtypes of all parameters and buffers, and which of them are trained.
void require_same_parameters(const torch::nn::Module& module, const ProcessGroup& group);

// The values of all parameters and buffers, bit for bit.
void require_equal_replicas(const torch::nn::Module& module, const ProcessGroup& group);

// The values of the parameters alone: between two steps the buffers of BatchNorm differ, because
// each rank has seen other samples.
void require_equal_parameters(const torch::nn::Module& module, const ProcessGroup& group);

// Warns once, on rank 0, of a parameter that differs between the ranks, such as one that was loaded
// on one rank alone after the wrapper. It compares a sum of the bits of each parameter in the calls
// 1, 2, 4, 8 and so on; the others cost nothing. Those are collectives. Not for parameters on a
// GPU, for which a host would wait: check_replicas compares these.
class DriftWatch {
 public:
  void compare(const std::vector<torch::Tensor>& parameters, const std::vector<std::string>& names,
               const ProcessGroup& group);

 private:
  std::uint64_t calls_ = 0;
  bool warned_ = false;
};

// Gives the replicas of all ranks the parameters and buffers of rank 0. A collective.
void broadcast_replica(const torch::nn::Module& module, const ProcessGroup& group);

// The same for the buffers alone, hidden from autograd: a backward does not read running
// statistics.
void broadcast_buffers(const torch::nn::Module& module, const ProcessGroup& group);

}  // namespace ladder
