// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/custom_class.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "ladder/kernels/fixed_point.h"

namespace ladder {

// The weight gradient of a linear layer before it is multiplied: gradient^T * input.
struct WeightProduct {
  torch::Tensor gradient;  // of the output: float [rows][out]
  torch::Tensor input;     // float [rows][in]
};

// Where onednn_linear() puts weight gradients as products, for a caller that adds up several of
// them in fixed point: so they need not go to memory one by one, which takes longer than the
// multiplication.
struct WeightProducts : torch::CustomClassHolder {
  std::vector<WeightProduct> kept;
};

// Whether add_products_in_fixed_point() computes gradients of the shape of `weight`, of a multiple
// of these rows at a time.
inline constexpr std::int64_t kProductRows = 4;
bool takes_products(const torch::Tensor& weight);

// As add_in_fixed_point(), for the matrices [out][in] of `products`. Each is summed over its rows
// in float, in their order. Also writes the floats of the sum, times `factor`, to `result`, unless
// that is null; `sum` may be null instead, and counts from zero then.
bool add_products_in_fixed_point(const FixedPoint& form, const std::vector<WeightProduct>& products,
                                 double divisor, bool fresh, std::int64_t* sum, double factor,
                                 float* result);

}  // namespace ladder
