// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ladder {

// The largest counts that options accept, and that a checkpoint may hold. Each is far above any
// use, so a larger one is a mistake. Their products fit 64 bits: kMostSamplesPerBatch ×
// kMostBatchesPerStep × kLargestWorldSize is 10^18.

inline constexpr std::int64_t kMostEpochs = 1'000'000'000;
inline constexpr std::int64_t kMostOptimizerSteps = 1'000'000'000'000;
inline constexpr std::int64_t kMostSamplesPerBatch = 10'000'000;
inline constexpr int kMostBatchesPerStep = 1'000'000;  // gradient accumulation
inline constexpr int kLargestWorldSize = 100'000;
inline constexpr int kMostWorkers = 1024;  // threads of a data loader

}  // namespace ladder
