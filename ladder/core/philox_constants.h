// SPDX-License-Identifier: Apache-2.0
#pragma once

// Equals: the constants of Philox4x32-10 (philox.h). No #include: NVRTC, which has no standard
// headers, compiles this file together with dropout_mask.cu.
namespace ladder {

inline constexpr unsigned kPhiloxMultiplier0 = 0xD2511F53;
inline constexpr unsigned kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr unsigned kPhiloxKeyStep0 = 0x9E3779B9;
inline constexpr unsigned kPhiloxKeyStep1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 10;

}  // namespace ladder
