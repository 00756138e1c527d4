// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/philox.h"

#include <algorithm>
#include <cstddef>

#include "ladder/core/simd.h"

namespace ladder {
namespace {

constexpr std::size_t kBlocks = 64;  // blocks computed together; a multiple of any vector width

struct Lanes {
  std::uint32_t word[4][kBlocks];
};

void start_lanes(const PhiloxStream& stream, std::size_t first_block, Lanes& lanes) {
  for (std::size_t i = 0; i < kBlocks; ++i) {
    lanes.word[0][i] = stream.word0;
    lanes.word[1][i] = stream.word1;
    lanes.word[2][i] = stream.word2;
    lanes.word[3][i] = static_cast<std::uint32_t>(first_block + i);
  }
}

LADDER_SIMD_V4
void run_rounds(std::uint64_t key, Lanes& lanes) {
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * lanes.word[0][i];
      const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * lanes.word[2][i];
      lanes.word[0][i] = static_cast<std::uint32_t>(product1 >> 32) ^ lanes.word[1][i] ^ key0;
      lanes.word[1][i] = static_cast<std::uint32_t>(product1);
      lanes.word[2][i] = static_cast<std::uint32_t>(product0 >> 32) ^ lanes.word[3][i] ^ key1;
      lanes.word[3][i] = static_cast<std::uint32_t>(product0);
    }
    key0 += kPhiloxKeyStep0;
    key1 += kPhiloxKeyStep1;
  }
}

}  // namespace

void philox_fill(const PhiloxStream& stream, std::span<std::uint32_t> words) {
  const std::size_t quarter = (words.size() + 3) / 4;
  Lanes lanes{};
  for (std::size_t block = 0; block < quarter; block += kBlocks) {
    start_lanes(stream, block, lanes);
    run_rounds(stream.key, lanes);
    const std::size_t count = std::min(kBlocks, quarter - block);
    for (std::size_t j = 0; j < 4; ++j) {
      const std::size_t begin = std::min(j * quarter + block, words.size());
      const std::size_t end = std::min(begin + count, words.size());
      std::copy_n(lanes.word[j], end - begin, words.data() + begin);
    }
  }
}

}  // namespace ladder
