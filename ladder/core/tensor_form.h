// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

// What is equal in two tensors of which one can take the place of the other, for comparisons and
// for messages. A member that is unset is not compared.
struct TensorForm {
  static constexpr std::int64_t kAnySize = -1;  // "N" in a text

  std::optional<torch::ScalarType> dtype = {};
  std::optional<std::vector<std::int64_t>> sizes = {};
  std::optional<std::vector<std::int64_t>> strides = {};
  std::optional<torch::Device> device = {};

  // Dtype and sizes: of tensors that are copied, element by element.
  static TensorForm of_values(const torch::Tensor& tensor) {
    return {.dtype = tensor.scalar_type(), .sizes = tensor.sizes().vec()};
  }
  // Strides too, unless the elements are in row-major order: collectives send memory.
  static TensorForm of_memory(const torch::Tensor& tensor) {
    auto form = of_values(tensor);
    if (!tensor.is_contiguous()) form.strides = tensor.strides().vec();
    return form;
  }

  bool operator==(const TensorForm&) const = default;
  std::string text() const;  // "Float [N, 3], strides [1, 2] on cuda:0"
  // Throws UsageError, "where: expected Float [2, 3], got 'Float [2, 4]'", for another form.
  void require(const torch::Tensor& tensor, std::string_view where, std::string_view hint) const;
};

}  // namespace ladder
