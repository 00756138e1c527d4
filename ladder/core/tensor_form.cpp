// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/tensor_form.h"

#include <utility>

#include "ladder/core/error.h"

namespace ladder {

std::string TensorForm::text() const {
  std::string text = dtype ? c10::toString(*dtype) : "";
  const auto append = [&](const char* begin, const std::vector<std::int64_t>& numbers) {
    text += begin;
    for (const char* comma = ""; const auto number : numbers) {
      text += std::exchange(comma, ", ") + (number == kAnySize ? "N" : std::to_string(number));
    }
    text += "]";
  };
  if (sizes) append(" [", *sizes);
  if (strides) append(", strides [", *strides);
  return device ? text + " on " + device->str() : text;
}

void TensorForm::require(const torch::Tensor& tensor, std::string_view where,
                         std::string_view hint) const {
  TensorForm got;
  if (dtype) got.dtype = tensor.scalar_type();
  if (sizes) got.sizes = tensor.sizes().vec();
  if (strides) got.strides = tensor.strides().vec();
  if (device) got.device = tensor.device();
  if (got != *this) throw UsageError::malformed(where, text(), got.text(), hint);
}

}  // namespace ladder
