// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include "ladder/comm/process_group.h"

namespace ladder {

// Data-parallel training keeps one replica of the model on each rank and relies on all
// replicas being the same. These checks say so, or name the first tensor that differs.
//
// Both are collectives and compare a hash first: one small all_gather when all is well. When
// it is not, every rank throws the same DistributedError, not only some of them, so that none
// is left waiting.

// Names, shapes and dtypes of all parameters and buffers, and which of them are trained.
void require_same_parameters(const torch::nn::Module& module, const ProcessGroup& group);

// The values of all parameters and buffers, bit for bit.
void require_equal_replicas(const torch::nn::Module& module, const ProcessGroup& group);

// The values of the parameters alone: between two steps the buffers of BatchNorm differ, as each
// rank has seen other samples.
void require_equal_parameters(const torch::nn::Module& module, const ProcessGroup& group);

}  // namespace ladder
