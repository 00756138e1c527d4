// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ladder {

// The largest counts that options accept, and that a checkpoint may hold. Each is far above any
// use, so a larger one is a mistake. Their products fit 64 bits: kMaxSamplesPerBatch ×
// kMaxBatchesPerStep × kLargestWorldSize is 10^18.

inline constexpr std::int64_t kMaxEpochs = 1'000'000'000;
inline constexpr std::int64_t kMaxOptimizerSteps = 1'000'000'000'000;
inline constexpr std::int64_t kMaxSamplesPerBatch = 10'000'000;
inline constexpr int kMaxBatchesPerStep = 1'000'000;  // gradient accumulation
inline constexpr int kLargestWorldSize = 100'000;
inline constexpr int kMaxWorkers = 1024;  // threads of a data loader

}  // namespace ladder
