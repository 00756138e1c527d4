// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ladder {

// The values of a tensor as bytes, in row-major order (NCHW), wherever and however it lies.
//
// What is saved and what is hashed: neither may depend on the device or on a layout such as
// channels_last. Shares the tensor's memory if it is contiguous on the CPU, copies otherwise
// (and then waits for the device). Little-endian, as all machines LibTorch runs on are.
class RowMajorBytes {
 public:
  explicit RowMajorBytes(const torch::Tensor& tensor);

  std::span<const std::byte> span() const;

 private:
  torch::Tensor contiguous_;
};

// The first 16 hexadecimal digits of the sha256 of a tensor's bytes.
std::string tensor_digest(const torch::Tensor& tensor);

// The name that safetensors has for a dtype, such as "F32". Throws UsageError for one it lacks.
std::string safetensors_dtype(torch::ScalarType dtype);

// The dtype behind a safetensors name. Throws UsageError for an unknown name.
torch::ScalarType dtype_of_safetensors(std::string_view name);

}  // namespace ladder
