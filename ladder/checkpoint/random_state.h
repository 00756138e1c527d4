// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <functional>
#include <string_view>

#include "ladder/checkpoint/state_dict.h"

namespace ladder {

// Where the stream of random numbers stands: a run that goes on with it draws the numbers that an
// uninterrupted run would have drawn.
//
// LibTorch has one default generator for the CPU and one for each GPU. Whatever takes no generator
// of its own draws from them: initial weights, PyTorch's dropout. Each process has its own, so
// each rank saves its own.

// {"cpu": state of the CPU's default generator}, and {"cuda": that of `device`} if it is a GPU:
// bytes (uint8 tensors) that only a generator of the same kind understands. They are Python's:
//
//     torch.set_rng_state(state["cpu"]); torch.cuda.set_rng_state(state["cuda"], device)
StateDict random_state(const torch::Device& device);

// Takes it back, in two halves, so that a checkpoint of several parts is applied whole or not at
// all: this one checks and changes nothing, and what it returns applies.
//
// A run may go on with another device than it began with: the state of a GPU is left out on the
// CPU, and a GPU without one keeps its own. The numbers are other ones then, in any case.
//
// Throws DataError, naming `origin`, if "cpu" is missing, there is anything but the two, or a
// state is not of the form that its generator takes.
[[nodiscard]] std::function<void()> plan_load_random_state(const StateDict& state,
                                                           const torch::Device& device,
                                                           std::string_view origin);

}  // namespace ladder
