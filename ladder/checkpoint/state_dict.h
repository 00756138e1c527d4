// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace ladder {

// Tensors by name, in name order: what a checkpoint holds.
//
// The tensors share memory with the module they were taken from; saving copies them.
// Python's counterpart: torch.nn.Module.state_dict().
using StateDict = std::map<std::string, torch::Tensor>;

// All parameters and buffers of `module`, under the names that Python gives them.
StateDict state_dict(const torch::nn::Module& module);

// The same without the prefix "module." that wrappers such as DistributedDataParallel put
// before every name: what is saved, so that it can be loaded with and without a wrapper.
StateDict unwrapped_state_dict(const torch::nn::Module& module);

// Copies `values` into the parameters and buffers of `module`, wherever they are placed.
//
// Names match with and without the prefix "module." on either side. Everything is checked
// before anything is copied: a missing or surplus name or another shape throws DataError,
// which names `origin` (the file the values came from) and the first tensor that differs.
//
// A checkpoint has several parts and is applied whole or not at all, so loading comes in two
// halves: plan_... checks and changes nothing, and what it returns copies. It shares the memory of
// both sides until then.
[[nodiscard]] std::function<void()> plan_load_state_dict(torch::nn::Module& module,
                                                         const StateDict& values,
                                                         std::string_view origin);

// Both halves.
void load_state_dict(torch::nn::Module& module, const StateDict& values, std::string_view origin);

// Throws NumericError if a parameter of `module` that is trained holds NaN or infinity: what would
// be written to `path` would take the place of weights of which something can be made. Waits for a
// GPU.
void require_finite(const torch::nn::Module& module, const std::string& path);

// A fingerprint of the weights: sha256 over each tensor in name order, fed as
// name, 0, dtype ("F32"), 0, shape ("32,1,3,3"), 0, bytes in row-major order.
// The prefix "module." does not count. Equal values mean equal weights, bit for bit,
// in C++ and in Python. Copies tensors from the device: waits for it.
std::string weights_sha256(const StateDict& values);

// "conv1.weight" for "module.conv1.weight".
std::string without_module_prefix(std::string_view name);

}  // namespace ladder
