// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace ladder {

// Tensors by name, in name order.
//
// The tensors share memory with the module they were taken from; saving copies them.
// Python's counterpart: torch.nn.Module.state_dict().
using StateDict = std::map<std::string, torch::Tensor>;

// All parameters and buffers of `module`, under the names that Python gives them.
StateDict state_dict(const torch::nn::Module& module);

// The same without the prefix "module." of each ModelWrapper, and each tensor once, under its first
// name, as Python's safetensors.torch.save_model: saved this way, weights load with and without a
// wrapper.
StateDict unwrapped_state_dict(const torch::nn::Module& module);

// Copies `values` into the parameters and buffers of `module`, on their devices.
//
// Wrappers count on neither side: a prefix "module." of every name in `values`, as Python's
// DistributedDataParallel gives it, is removed unless the network itself has it. A tensor with
// several names (tied weights) needs one of them. Everything is checked before anything is copied.
// A missing or surplus name, another shape, another dtype (floating-point values are converted
// among themselves), and what require_finite refuses throw DataError, which names `origin` (the
// file of the values) and the first tensor that differs.
//
// A checkpoint of several parts is applied as a whole or not at all, so loading has two steps:
// plan_... checks and changes nothing, and the function it returns copies. That function shares the
// memory of both sides.
[[nodiscard]] std::function<void()> plan_load_state_dict(torch::nn::Module& module,
                                                         const StateDict& values,
                                                         std::string_view origin);

// Both steps.
void load_state_dict(torch::nn::Module& module, const StateDict& values, std::string_view origin);

// Whether no element is NaN or infinite. Waits for a GPU.
bool all_finite(const torch::Tensor& tensor);

// Throws NumericError if a trained parameter or a running mean or variance of `module` holds NaN or
// infinity, so that useful weights at `path` are not overwritten. Frozen parameters and other
// buffers may hold them: a mask of infinities does. Waits for a GPU.
void require_finite(const torch::nn::Module& module, const std::string& path);

// The same for all of `tensors`, such as the state of an optimizer.
void require_finite(const StateDict& tensors, const std::string& path);

// A fingerprint of the weights: sha256 over each tensor in name order, fed as
// name, 0, dtype ("F32"), 0, shape ("32,1,3,3"), 0, bytes in row-major order.
// A prefix "module." of every name does not count. Equal values mean equal weights, bit for bit,
// in C++ and in Python. Copies tensors from the device: waits for it.
std::string weights_sha256(const StateDict& values);

// The values of a tensor as bytes, in row-major order (NCHW), for any device and memory format.
// Shares the tensor's memory if it is contiguous on the CPU; else copies, and waits for the device.
// Little-endian, as all machines that the library supports.
class RowMajorBytes {
 public:
  explicit RowMajorBytes(const torch::Tensor& tensor);

  std::span<const std::byte> span() const;

 private:
  torch::Tensor contiguous_;
};

// The first 16 hexadecimal digits of the sha256 of a tensor's bytes.
std::string tensor_digest(const torch::Tensor& tensor);

// The safetensors name of a dtype, such as "F32". Throws UsageError for a dtype without one.
std::string safetensors_dtype(torch::ScalarType dtype);

// The dtype of a safetensors name. Throws UsageError for an unknown name.
torch::ScalarType dtype_of_safetensors(std::string_view name);

}  // namespace ladder
