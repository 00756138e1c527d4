// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/channels_last.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/types.h>

#include <vector>

namespace ladder {
namespace {

TEST(ToChannelsLast, SetsTheStridesAlsoForOneChannel) {
  const auto images = torch::rand({2, 1, 4, 5});
  const auto converted = to_channels_last(images);
  EXPECT_EQ(converted.strides(), (std::vector<std::int64_t>{20, 1, 5, 1}));
  EXPECT_EQ(converted.const_data_ptr(), images.const_data_ptr()) << "the same bytes: no copy";
  EXPECT_TRUE(torch::equal(converted, images));
  EXPECT_TRUE(to_channels_last(converted).is_same(converted));
}

TEST(ToChannelsLast, CopiesSeveralChannels) {
  const auto images = torch::rand({2, 3, 4, 5});
  const auto converted = to_channels_last(images);
  EXPECT_EQ(converted.strides(), (std::vector<std::int64_t>{60, 1, 15, 3}));
  EXPECT_TRUE(torch::equal(converted, images));
  const auto rows = torch::rand({2, 1, 5, 4}).transpose(2, 3);  // one channel, not contiguous
  EXPECT_TRUE(torch::equal(to_channels_last(rows), rows));
  EXPECT_EQ(to_channels_last(rows).strides(), (std::vector<std::int64_t>{20, 1, 5, 1}));
}

TEST(ToChannelsLast, PassesTheGradientOn) {
  for (const std::int64_t channels : {1, 3}) {
    const auto images = torch::rand({2, channels, 4, 5}).requires_grad_();
    (to_channels_last(images) * 2).sum().backward();
    EXPECT_TRUE(torch::equal(images.grad(), torch::full_like(images, 2.0)));
  }
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
