// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

// What is equal in two tensors of which one can take the place of the other, for comparisons and
// for messages. A member that is unset is not compared.
struct TensorForm {
  static constexpr std::int64_t kAnySize = -1;  // "N" in a text

  std::optional<c10::ScalarType> dtype = {};
  std::optional<std::vector<std::int64_t>> sizes = {};
  std::optional<std::vector<std::int64_t>> strides = {};
  std::optional<c10::Device> device = {};

  // Dtype and sizes: of tensors that are copied, element by element.
  static TensorForm of_values(const at::Tensor& tensor);
  // Strides too, unless the elements are in row-major order: collectives send memory.
  static TensorForm of_memory(const at::Tensor& tensor);

  // "Float [N, 3], strides [1, 2] on cuda:0"
  std::string text() const;
  bool operator==(const TensorForm&) const = default;

  // Throws UsageError, "where: expected Float [2, 3], got Float [2, 4]", unless `tensor` has the
  // members that are set.
  void require(const at::Tensor& tensor, std::string_view where, std::string_view hint) const;
};

}  // namespace ladder
