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

// The random key (RandomScope) for each of these consecutive parts of a batch; without a scope,
// none.
std::vector<std::optional<RandomKey>> divide_random_key(const std::vector<Inputs>& parts);

}  // namespace ladder
