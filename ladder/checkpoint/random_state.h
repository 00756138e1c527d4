// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <functional>
#include <string_view>

#include "ladder/checkpoint/state_dict.h"

namespace ladder {

// The position in the stream of random numbers: a run that continues with it draws the same numbers
// as an uninterrupted run.
//
// LibTorch has one default generator for the CPU and one for each GPU. Operations without a
// generator of their own use them: initial weights, PyTorch's dropout. Each rank saves its own.

// {"cpu": state of the CPU's default generator}, and {"cuda": that of `device`} if it is a GPU:
// bytes (uint8 tensors) that a generator of the same kind reads, in C++ or in Python:
//
//     torch.set_rng_state(state["cpu"]); torch.cuda.set_rng_state(state["cuda"], device)
StateDict random_state(const torch::Device& device);

// Loads the state in two steps, so that a checkpoint of several parts is applied as a whole or not
// at all: this one checks and changes nothing, and the function it returns applies.
//
// A run may continue on another device: the CPU ignores the state of a GPU, and a GPU without a
// state keeps its own. The random numbers then differ from those of an uninterrupted run.
//
// Throws DataError, naming `origin`, if "cpu" is missing, there is another name than the two, or a
// state does not have the form that its generator accepts.
[[nodiscard]] std::function<void()> plan_load_random_state(const StateDict& state,
                                                           const torch::Device& device,
                                                           std::string_view origin);

}  // namespace ladder
