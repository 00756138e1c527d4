// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <string_view>

#include "ladder/checkpoint/safetensors.h"

namespace ladder {

// The state of an optimizer of another library, such as torch::optim::Adam, by its own save and
// load, as a safetensors file. LibTorch's archives hold pickles and code; one is only read here
// right after this process has written it.
//
//     tensors    "state.P.NAME" of parameter P, which counts over all groups, and sizes
//     metadata   "archive": JSON text with the class, and under "values" what is no tensor
//
// Parameters have no names in it, so their order counts.

// Throws UsageError for an optimizer of another library whose save() writes nothing, as that of a
// class without one, or a type that a file cannot hold.
void require_savable(const torch::optim::Optimizer& optimizer);

SafetensorsFile archive_of(const torch::optim::Optimizer& optimizer);

// Checks the file, and returns the function that applies it, once, while the optimizer lives.
// Throws DataError naming `origin` for the state of another class, or of other parameter groups.
[[nodiscard]] std::function<void()> plan_load_archive(torch::optim::Optimizer& optimizer,
                                                      const SafetensorsFile& file,
                                                      std::string_view origin);

}  // namespace ladder
