// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <functional>
#include <string_view>

#include "ladder/nn/state_dict.h"

namespace ladder {

// The position in the stream of random numbers: a run that continues with it draws the same numbers
// as an uninterrupted run. Each rank saves its own.

// {"cpu": state of the CPU's default generator}; if `device` is a GPU, also {"cuda": that of
// `device`}, and those of the other GPUs that this process can use, such as for DataParallel:
// "cuda.1", "cuda.2", ... in the order of their indices. A state is bytes (a uint8 tensor) that a
// generator of the same kind reads, in C++ or in Python (docs/formats.md, "Files").
StateDict random_state(const torch::Device& device);

// Loads the state in two steps, so that a checkpoint of several parts is applied as a whole or not
// at all: this one checks and changes nothing, and the function it returns applies.
//
// A run may continue on other devices: states of GPUs that are not there are ignored, and a GPU
// without a state keeps its own. The random numbers then differ from those of an uninterrupted run.
//
// Throws DataError, naming `origin`, if "cpu" is missing, there is another name than these, or a
// state does not have the form that its generator accepts.
[[nodiscard]] std::function<void()> plan_load_random_state(const StateDict& state,
                                                           const torch::Device& device,
                                                           std::string_view origin);

}  // namespace ladder
