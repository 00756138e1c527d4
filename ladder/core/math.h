// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ladder {

// Which of two ways to compute the same thing.
enum class Math {
  kFast,       // channels_last layout, dropout masks from a counter (see random_scope.h)
  kReference,  // NCHW, PyTorch's own operations and random stream: bit-equal to Python
};

}  // namespace ladder
