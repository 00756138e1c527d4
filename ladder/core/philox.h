// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ladder/core/philox_constants.h"

namespace ladder {

// Equals: the generator behind torch.rand on a GPU, Philox4x32-10, with counters of our own.
//
// A function from 128 bits of counter and 64 bits of key to 128 random bits: no state, so dropout
// masks and augmentation do not depend on how threads and ranks divide the work.
//
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
using PhiloxCounter = std::array<std::uint32_t, 4>;

// The four random words that belong to `counter` under `key`.
constexpr PhiloxCounter philox4x32(PhiloxCounter counter, std::uint64_t key) {
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += kPhiloxKeyStep0;
    key1 += kPhiloxKeyStep1;
  }
  return counter;
}

// A stream of random words: the key and words 0 to 2 of the counter. Word 3 counts blocks of four
// words.
struct PhiloxStream {
  std::uint64_t key = 0;
  std::uint32_t word0 = 0;
  std::uint32_t word1 = 0;
  std::uint32_t word2 = 0;
};

// Fills `words` with the stream: word j of block b = 0, 1, ... becomes words[j * quarter + b],
// where quarter = words.size() / 4 rounded up; words past the end are dropped. Quarters instead of
// neighbours, so that the loop vectorises.
void philox_fill(const PhiloxStream& stream, std::span<std::uint32_t> words);

}  // namespace ladder
