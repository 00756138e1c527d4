// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/channels_last.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/types.h>

#include <vector>

namespace ladder {
namespace {

TEST(ToChannelsLast, SetsTheStridesAlsoForOneChannelAndPassesTheGradientOn) {
  const auto one = torch::rand({2, 1, 4, 5});
  const auto rows = torch::rand({2, 1, 5, 4}).transpose(2, 3);  // one channel, not contiguous
  for (const auto& images : {one, rows, torch::rand({2, 3, 4, 5})}) {
    const auto leaf = images.detach().requires_grad_();
    const auto converted = to_channels_last(leaf);
    const auto channels = images.size(1);
    EXPECT_EQ(converted.strides(),
              (std::vector<std::int64_t>{20 * channels, 1, 5 * channels, channels}));
    EXPECT_TRUE(torch::equal(converted, images));
    EXPECT_TRUE(to_channels_last(converted).is_same(converted));
    (converted * 2).sum().backward();
    EXPECT_TRUE(torch::equal(leaf.grad(), torch::full_like(leaf, 2.0)));
  }
  EXPECT_EQ(to_channels_last(one).const_data_ptr(), one.const_data_ptr()) << "no copy";
}

TEST(UseChannelsLast, KeepsValuesAndIdentityOfTheParameters) {
  torch::nn::Conv2d conv(3, 5, 2);
  const auto weight = conv->weight;
  const auto before = weight.detach().clone();
  const auto bias = conv->bias.const_data_ptr();
  use_channels_last(*conv);
  EXPECT_TRUE(conv->weight.is_same(weight));
  EXPECT_TRUE(weight.is_contiguous(torch::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(weight.requires_grad());
  EXPECT_TRUE(torch::equal(weight, before));
  EXPECT_EQ(conv->bias.const_data_ptr(), bias);
}

}  // namespace
}  // namespace ladder
