// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/tensor_bytes.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <array>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/sha256.h"

namespace ladder {
namespace {

constexpr std::size_t kShortHashDigits = 16;

struct DtypeName {
  torch::ScalarType dtype;
  std::string_view name;
};

constexpr std::array<DtypeName, 13> kDtypeNames = {{
    {torch::kFloat32, "F32"},
    {torch::kFloat64, "F64"},
    {torch::kFloat16, "F16"},
    {torch::kBFloat16, "BF16"},
    {torch::kInt64, "I64"},
    {torch::kInt32, "I32"},
    {torch::kInt16, "I16"},
    {torch::kInt8, "I8"},
    {torch::kUInt64, "U64"},
    {torch::kUInt32, "U32"},
    {torch::kUInt16, "U16"},
    {torch::kUInt8, "U8"},
    {torch::kBool, "BOOL"},
}};

}  // namespace

RowMajorBytes::RowMajorBytes(const torch::Tensor& tensor)
    : contiguous_(tensor.detach().cpu().contiguous()) {}

std::span<const std::byte> RowMajorBytes::span() const {
  return {static_cast<const std::byte*>(contiguous_.const_data_ptr()), contiguous_.nbytes()};
}

std::string tensor_digest(const torch::Tensor& tensor) {
  return sha256_hex(RowMajorBytes(tensor).span()).substr(0, kShortHashDigits);
}

std::string safetensors_dtype(torch::ScalarType dtype) {
  for (const auto& entry : kDtypeNames) {
    if (entry.dtype == dtype) return std::string(entry.name);
  }
  throw UsageError::conflict("safetensors", fmt::format("has no dtype {}", c10::toString(dtype)),
                             "convert the tensor with .to(torch::kFloat32) first");
}

torch::ScalarType dtype_of_safetensors(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& entry : kDtypeNames) {
    if (entry.name == name) return entry.dtype;
    names.emplace_back(entry.name);
  }
  throw UsageError::unknown_name("safetensors dtype", name, names);
}

}  // namespace ladder
