// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "ladder/data/batch.h"
#include "ladder/train/loss_meter.h"

namespace ladder {

// The first tensor that is not finite: of the images of the batch, then of the gradients of `model`
// in the order of its parameters. "images of sample 17", "gradient of fc2.weight",
// or "the loss" if there is none. Waits for a GPU.
std::string first_bad_tensor(const Batch& batch, const torch::nn::Module& model);

// Throws what this rank has to say of a bad step: a NumericError with the samples, the first bad
// tensor (empty = unknown, as it is when it is looked for later) and the last checkpoint (empty =
// none), or, if it is another rank's loss that is bad, a DistributedError.
[[noreturn]] void throw_bad_step(const BadStep& bad, const std::string& first_bad_tensor,
                                 const std::string& checkpoint);

}  // namespace ladder
