// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ladder {

// The number format of the large operations of a network; see amp/autocast.h. Weights, their
// gradients and optimizers stay float32 in each of them.
enum class Precision {
  kFp32,  // 32 bits
  kBf16,  // 16 bits: the range of fp32, 8 bits of precision
  kFp16,  // 16 bits: 11 bits of precision, from 6e-8 to 65504
};

}  // namespace ladder
