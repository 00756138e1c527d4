// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/dropout.h"

#include <ATen/record_function.h>

#include "ladder/core/error.h"
#include "ladder/nn/ops.h"
#include "ladder/nn/random_scope.h"

namespace ladder {

Dropout::Dropout(DropoutOptions options)
    : options_(options), mask_options_{options.p, options.layer} {
  const bool valid = options.p >= 0.0 && options.p < 1.0;  // false for NaN
  if (!valid) {
    throw UsageError::out_of_range("Dropout p", options.p, "0 <= p < 1", "0 drops nothing");
  }
}

const RandomKey& Dropout::key() const {
  const auto& key = RandomScope::current();
  if (options_.layer != 0 || RandomScope::is_only(this)) return key;
  throw UsageError::conflict(
      "Dropout", "two layers with `layer` 0 in one RandomScope, whose masks are equal",
      "number the layers of a network: Dropout({.p = 0.1, .layer = 1}); give "
      "a second network a RandomScope with another seed");
}

torch::Tensor Dropout::forward(const torch::Tensor& input) const {
  if (options_.masks == DropoutMasks::kByGenerator) {
    return torch::dropout(input, options_.p, is_training());
  }
  if (!is_training() || options_.p == 0.0) return input;
  RECORD_FUNCTION("ladder::dropout", {});
  const auto mask = ops().counter_mask(input.detach(), key(), mask_options_);
  return input * mask.to(input.scalar_type());
}

torch::Tensor Dropout::forward_flatten(const torch::Tensor& images) const {
  if (options_.masks == DropoutMasks::kByGenerator || !is_training() || options_.p == 0.0) {
    return torch::flatten(forward(images), 1);
  }
  return ops().dropout_flatten(images, key(), mask_options_);
}

}  // namespace ladder
