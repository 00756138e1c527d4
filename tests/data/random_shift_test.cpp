// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/random_shift.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/philox.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

using Pair = std::pair<std::int64_t, std::int64_t>;

Pair offset_of(const RandomShift& shift, std::int64_t epoch, std::int64_t index) {
  const auto [down, right] = shift.offset(epoch, index);
  return {down, right};
}

std::vector<Pair> offsets(const RandomShift& shift, std::int64_t epoch, std::int64_t count) {
  std::vector<Pair> result;
  for (std::int64_t i = 0; i < count; ++i) result.push_back(offset_of(shift, epoch, i));
  return result;
}

// `image` [H, W] moved by `offset`, by copying the part that stays visible.
torch::Tensor moved(const torch::Tensor& image, const Pair& offset, float fill) {
  const auto [down, right] = offset;
  const std::int64_t rows = image.size(0) - std::abs(down);
  const std::int64_t columns = image.size(1) - std::abs(right);
  const auto part = [&](const torch::Tensor& tensor, std::int64_t row, std::int64_t column) {
    return tensor.narrow(0, row, rows).narrow(1, column, columns);
  };
  auto result = torch::full_like(image, fill);
  part(result, std::max<std::int64_t>(0, down), std::max<std::int64_t>(0, right))
      .copy_(part(image, std::max<std::int64_t>(0, -down), std::max<std::int64_t>(0, -right)));
  return result;
}

torch::Tensor applied(const RandomShift& shift, const torch::Tensor& images,
                      const std::vector<std::int64_t>& indices, std::int64_t epoch) {
  Inputs inputs = images;
  shift.apply(inputs, indices, epoch);
  return inputs.only();
}

// Pinned: a resumed run must draw what the run before it would have drawn. Philox makes them even,
// and different for each image and epoch.
TEST(RandomShift, DrawsFromTheCounterOfSeedEpochAndIndex) {
  for (const std::uint64_t seed : {42U, 43U}) {
    const RandomShift shift({.max_pixels = 2, .seed = seed});
    for (const std::int64_t epoch : {0, 3}) {
      for (const std::int64_t index : {0, 1, 2, 3, 49, 59999}) {
        const auto words = philox4x32(
            {static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(index), 0xA0000000, 0},
            seed);
        const auto draw = [](std::uint32_t word) {  // a fifth of the range for each of -2 ... 2
          return static_cast<std::int64_t>(std::floor(word / 4294967296.0 * 5.0)) - 2;
        };
        EXPECT_EQ(offset_of(shift, epoch, index), Pair(draw(words[0]), draw(words[1])));
      }
    }
  }
}

TEST(RandomShift, MovesAllChannelsOfEachImageByItsOffsetAndFillsTheRest) {
  const RandomShift shift({.max_pixels = 3, .seed = 7, .fill = -0.5F});
  const std::vector<std::int64_t> indices = {4, 900, 4, 17, 59999};
  for (const std::int64_t channels : {1, 3}) {
    const auto images = torch::arange(240 * channels, torch::kFloat32).reshape({5, channels, 6, 8});
    const auto shifted = applied(shift, images, indices, /*epoch=*/2);
    for (std::int64_t i = 0; i < 5; ++i) {
      const Pair offset = offset_of(shift, 2, indices[static_cast<std::size_t>(i)]);
      for (std::int64_t channel = 0; channel < channels; ++channel) {
        EXPECT_TRUE(torch::equal(shifted[i][channel], moved(images[i][channel], offset, -0.5F)))
            << "image " << i << ", channel " << channel;
      }
    }
    EXPECT_TRUE(torch::equal(shift.shifted_by_tensors(images, indices, 2), shifted));
    const auto doubles = applied(shift, images.to(torch::kFloat64), indices, 2);
    EXPECT_TRUE(torch::equal(doubles, shifted.to(torch::kFloat64)));
  }
}

TEST(RandomShift, PositiveOffsetsAreDownAndRight) {
  const RandomShift shift({.max_pixels = 2});
  const auto all = offsets(shift, 0, 1000);
  const std::int64_t index = std::find(all.begin(), all.end(), Pair(2, 1)) - all.begin();
  ASSERT_LT(index, 1000);
  auto image = torch::zeros({1, 1, 28, 28});
  image[0][0][10][10] = 1.0F;
  image = applied(shift, image, {index}, 0);
  EXPECT_EQ(image[0][0][12][11].item<float>(), 1.0F);
  EXPECT_EQ(image.sum().item<float>(), 1.0F);
}

TEST(RandomShift, OfZeroPixelsChangesNothingAndALargeOneLeavesNothing) {
  const RandomShift none({.max_pixels = 0, .fill = 9.0F});
  const auto images = torch::arange(2.0 * 9).reshape({2, 1, 3, 3});
  const std::vector<std::int64_t> indices = {1, 2};
  EXPECT_TRUE(torch::equal(applied(none, images, indices, 0), images));
  EXPECT_TRUE(torch::equal(none.shifted_by_tensors(images, indices, 0), images));
  EXPECT_EQ(none.shifted_by_tensors(images.narrow(0, 0, 0), {}, 0).size(0), 0);
  const RandomShift large({.max_pixels = 50, .fill = 1.0F});
  ASSERT_GT(std::abs(large.offset(0, 1).down), 1);  // as 98 of 101 are
  EXPECT_TRUE(
      torch::equal(applied(large, torch::zeros({1, 1, 2, 2}), {1}, 0), torch::ones({1, 1, 2, 2})));
}

TEST(RandomShift, ChangesTheInputThatItIsToldAndRefusesAnyOther) {
  const std::vector<std::int64_t> indices = {1, 2};
  const auto images = torch::arange(2.0 * 9).reshape({2, 1, 3, 3});
  const auto texts = torch::ones({2, 5});
  Inputs both = {{"text", texts}, {"image", images}};
  RandomShift({.input = "image"}).apply(both, indices, 0);
  EXPECT_TRUE(torch::equal(both.at("image"), applied(RandomShift({}), images, indices, 0)));
  EXPECT_TRUE(both.at("text").is_same(texts));
  EXPECT_ERROR(RandomShift({}).apply(both, indices, 0), UsageError,
               "RandomShift input: expected the name of the images, got 'no name for 2 inputs'");
  EXPECT_ERROR(applied(RandomShift({}), texts, indices, 0), UsageError,
               "RandomShift: expected images [2, C, H, W], got 'Float [2, 5]'");
  EXPECT_ERROR(RandomShift({.max_pixels = -1}), UsageError,
               "RandomShift max_pixels: expected a number >= 0, got -1");
}

}  // namespace
}  // namespace ladder
