// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/tensor_form.h"

#include "ladder/core/error.h"

namespace ladder {
namespace {

std::string list_text(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const auto number : numbers) {
    text += text.empty() ? "" : ", ";
    text += number == TensorForm::kAnySize ? "N" : std::to_string(number);
  }
  return "[" + text + "]";
}

}  // namespace

TensorForm TensorForm::of_values(const at::Tensor& tensor) {
  return {.dtype = tensor.scalar_type(), .sizes = tensor.sizes().vec()};
}

TensorForm TensorForm::of_memory(const at::Tensor& tensor) {
  auto form = of_values(tensor);
  if (!tensor.is_contiguous()) form.strides = tensor.strides().vec();
  return form;
}

std::string TensorForm::text() const {
  std::string text = dtype ? c10::toString(*dtype) : "";
  if (sizes) text += (text.empty() ? "" : " ") + list_text(*sizes);
  if (strides) text += ", strides " + list_text(*strides);
  if (device) text += " on " + device->str();
  return text;
}

void TensorForm::require(const at::Tensor& tensor, std::string_view where,
                         std::string_view hint) const {
  TensorForm got;
  if (dtype) got.dtype = tensor.scalar_type();
  if (sizes) got.sizes = tensor.sizes().vec();
  if (strides) got.strides = tensor.strides().vec();
  if (device) got.device = tensor.device();
  if (got == *this) return;
  throw UsageError::malformed(where, text(), got.text(), hint);
}

}  // namespace ladder
