// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/custom_class.h>
#include <torch/types.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "ladder/data/inputs.h"
#include "ladder/nn/dropout_mask.h"

namespace ladder {

// For wrappers that hold several replicas of a model in one process, such as DataParallel.

// Gives the tensors `target` the memory of `source`.
void share_memory(const std::vector<torch::Tensor>& source,
                  const std::vector<torch::Tensor>& target);

// Copies between devices, in few large ones: a copy of a bias takes as long as one of a megabyte.
// Tensors of one dtype travel as one flat tensor of 10 MiB, or as one that is larger.

// The values of `tensors`, which are all on one device, on `device`. Undefined ones stay undefined,
// and all are the same tensors if the device is theirs.
std::vector<torch::Tensor> coalesced_to(const torch::Device& device,
                                        const std::vector<torch::Tensor>& tensors);

// Copies the values of `source` to `target`, tensors of the same shapes on another device.
void copy_coalesced(const std::vector<torch::Tensor>& source,
                    const std::vector<torch::Tensor>& target);

// The random key (RandomScope) for each of these consecutive parts of a batch; without a scope,
// none.
std::vector<std::optional<RandomKey>> divide_random_key(const std::vector<Inputs>& parts);

// One forward of the parts of a batch through replicas, kept for its backward.
struct ReplicaPass : torch::CustomClassHolder {
  using Tensors = std::vector<torch::Tensor>;

  std::vector<Inputs> inputs;          // of each part, leaves of its graph
  Tensors outputs;                     // of each part, with its graph
  std::vector<torch::Device> devices;  // of the caller's inputs
  // From the gradient of the joined output, that of each of the caller's inputs (undefined unless
  // it needs one) and parameters. It holds the replicas: the graph may outlive their wrapper.
  std::function<Tensors(const torch::Tensor& gradient)> backward;

  // `parts` of `whole`, detached.
  ReplicaPass(const Inputs& whole, std::vector<Inputs> parts);

  // Makes the inputs of a part leaves on `device`.
  void begin_part(std::size_t part, const Inputs& whole, const torch::Device& device,
                  bool with_grad);

  // `parameters`, then the inputs of the part that need a gradient.
  Tensors leaves(std::size_t part, Tensors parameters) const;

  // The gradients of the caller's inputs, on their devices: the rows of all parts, zero where one
  // does not use an input. `of_parts`: for each part those of its leaves after the parameters.
  Tensors gradients_of_inputs(const std::vector<Tensors>& of_parts,
                              const torch::Device& device) const;

  // The outputs of all parts on `device`, without their graphs. Throws UsageError for one without
  // one row per sample.
  torch::Tensor joined_output(const torch::Device& device) const;
};

// The output of the pass that `forward` makes, as one node in the graph of the caller. Its output
// is on `device`, as the weights are: the device of its gradient decides on which thread and on
// which stream the engine runs its backward. `leaves`: the caller's inputs and parameters.
torch::Tensor apply_as_one_node(const std::function<c10::intrusive_ptr<ReplicaPass>()>& forward,
                                const torch::Device& device,
                                const std::vector<torch::Tensor>& leaves);

}  // namespace ladder
