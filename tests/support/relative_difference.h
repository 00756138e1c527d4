// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace ladder {

// The length of the difference over the length of what is expected.
inline double relative_difference(const torch::Tensor& got, const torch::Tensor& expected) {
  const auto reference = expected.to(torch::kFloat64);
  return ((got.to(torch::kFloat64) - reference).norm() / reference.norm()).item<double>();
}

}  // namespace ladder
