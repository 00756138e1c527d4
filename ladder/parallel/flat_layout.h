// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/types.h>

#include <cstdint>

namespace ladder {

// Parameters one after another in one tensor, which the ranks divide into equal ranges. Each
// parameter and each range begins at a multiple of kFlatAlignment, so an element is in the same
// place of a kernel's vectors as in the whole parameter, and its bits are the same.
inline constexpr std::int64_t kFlatAlignment = 64;

inline std::int64_t aligned(std::int64_t elements) {
  return (elements + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment;
}

// The memory of a dense tensor, in its order, as a vector.
inline torch::Tensor in_memory_order(const torch::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

// While it lives, autograd does not know views as such. LibTorch's Optimizer::zero_grad detaches
// gradients, which autograd refuses for its views.
using PlainViews = at::AutoDispatchBelowADInplaceOrView;

}  // namespace ladder
