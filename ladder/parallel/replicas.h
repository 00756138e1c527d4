// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <optional>
#include <vector>

#include "ladder/data/inputs.h"
#include "ladder/kernels/dropout_mask.h"

namespace ladder {

// For wrappers that hold several replicas of a model in one process: DataParallel and
// ExactDataParallel.

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

}  // namespace ladder
