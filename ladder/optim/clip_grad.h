// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <vector>

namespace ladder {

// Bounds gradients before the optimizer's step, so that one bad batch moves the weights no further
// than a good one. Parameters without a gradient do not count; one
// that is listed twice (tied weights) counts once. All gradients must be on one device.
// In mixed precision with a GradScaler: call after its unscale_. With a PipelineStage the norm is
// that of all stages, so clip_grad_norm_ is a collective.

// Divides all gradients by one number, so that their norm as one long vector is at most `max_norm`.
// Returns the norm before, a scalar on the device, without waiting for a GPU. A norm of inf or NaN
// makes all gradients NaN or 0, as in Python.
//
// Equals Python's torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type) to the last bit.
// LibTorch's own waits for the device and handles the parameters one by one.
// Source: Pascanu et al., "On the difficulty of training recurrent neural networks", ICML 2013.
torch::Tensor clip_grad_norm_(const std::vector<torch::Tensor>& parameters, double max_norm,
                              double norm_type = 2.0);

// Clamps each number of each gradient to [-clip_value, clip_value].
// Python's counterpart: torch.nn.utils.clip_grad_value_.
void clip_grad_value_(const std::vector<torch::Tensor>& parameters, double clip_value);

}  // namespace ladder
