// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/philox.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ladder {
namespace {

constexpr std::uint32_t kOnes = 0xFFFFFFFF;

// The vectors of Random123's kat_vectors, "philox4x32 10".
TEST(Philox, GivesTheKnownAnswerForZeros) {
  constexpr PhiloxCounter kAnswer = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  static_assert(philox4x32({0, 0, 0, 0}, 0) == kAnswer, "also when the compiler computes it");
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0), kAnswer);
}

TEST(Philox, GivesTheKnownAnswerForOnes) {
  const PhiloxCounter answer = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, 0xFFFFFFFFFFFFFFFF), answer);
}

TEST(Philox, GivesTheKnownAnswerForTheDigitsOfPi) {
  const PhiloxCounter answer = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            answer);
}

// Word `i` of a fill of `size` words, from the layout in the header.
std::uint32_t expected_word(const PhiloxStream& stream, std::size_t size, std::size_t i) {
  const std::size_t quarter = (size + 3) / 4;
  const auto block = static_cast<std::uint32_t>(i % quarter);
  return philox4x32({stream.word0, stream.word1, stream.word2, block}, stream.key)[i / quarter];
}

TEST(PhiloxFill, GivesTheFunctionsWordsForEverySize) {
  const PhiloxStream stream{0xFEDCBA9876543210, 7, kOnes, 2};
  constexpr std::size_t kSizes[] = {0, 1, 2, 3, 4, 5, 7, 255, 256, 257, 259, 512, 9216};
  for (const std::size_t size : kSizes) {
    constexpr std::uint32_t kUntouched = 0xDEADBEEF;
    std::vector<std::uint32_t> words(size + 1, kUntouched);
    philox_fill(stream, std::span(words).first(size));
    for (std::size_t i = 0; i < size; ++i) {
      ASSERT_EQ(words[i], expected_word(stream, size, i)) << "word " << i << " of " << size;
    }
    EXPECT_EQ(words[size], kUntouched) << "wrote behind the end of " << size;
  }
}

TEST(PhiloxFill, ChangesWithEachPartOfTheStream) {
  const auto filled = [](const PhiloxStream& stream) {
    std::vector<std::uint32_t> words(8);
    philox_fill(stream, words);
    return words;
  };
  const auto words = filled({1, 2, 3, 4});
  EXPECT_EQ(filled({1, 2, 3, 4}), words);
  EXPECT_NE(filled({std::uint64_t{1} << 32 | 1, 2, 3, 4}), words);
  EXPECT_NE(filled({1, 0, 3, 4}), words);
  EXPECT_NE(filled({1, 2, 0, 4}), words);
  EXPECT_NE(filled({1, 2, 3, 0}), words);
}

}  // namespace
}  // namespace ladder
