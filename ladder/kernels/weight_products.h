// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <vector>

#include "ladder/kernels/fixed_point.h"

namespace ladder {

// The weight gradient of a linear layer before it is multiplied: gradient^T * input.
struct WeightProduct {
  torch::Tensor gradient;  // of the output: float [rows][out]
  torch::Tensor input;     // float [rows][in]
};

// Collects the weight gradients of onednn_linear() as products, for a caller that adds up several
// of them in fixed point: so they need not go to memory one by one, which takes longer than the
// multiplication.
//
//     DeferredProducts deferred;
//     auto gradients = torch::autograd::grad(...);  // undefined for weights whose product is kept
//     for (const auto& product : deferred.of(weight)) ...
//
// For backwards in the same thread while it lives; the innermost is used.
class DeferredProducts {
 public:
  DeferredProducts() { innermost() = this; }
  ~DeferredProducts() { innermost() = outer_; }
  DeferredProducts(const DeferredProducts&) = delete;
  DeferredProducts& operator=(const DeferredProducts&) = delete;

  // Those of a weight, by its memory.
  std::vector<WeightProduct> of(const torch::Tensor& weight) const;

  // Whether add_products_in_fixed_point() computes gradients of this shape, of a multiple of these
  // rows at a time.
  static constexpr std::int64_t kMultipleOfOut = 4;
  static bool takes(const torch::Tensor& weight);

  // Keeps a product and returns true; false without a collector in this thread, or for a weight
  // that it does not take.
  static bool keep(const torch::Tensor& weight, const WeightProduct& product);

 private:
  static DeferredProducts*& innermost() {
    thread_local DeferredProducts* collector = nullptr;
    return collector;
  }

  std::map<const void*, std::vector<WeightProduct>> products_;
  DeferredProducts* outer_ = innermost();
};

// As add_in_fixed_point(), for the matrices [out][in] of `products`. Each is summed over its rows
// in float, in their order. Also writes the floats of the sum, times `factor`, to `result`, unless
// that is null; `sum` may be null instead, and counts from zero then.
bool add_products_in_fixed_point(const FixedPoint& form, const std::vector<WeightProduct>& products,
                                 double divisor, bool fresh, std::int64_t* sum, double factor,
                                 float* result);

}  // namespace ladder
