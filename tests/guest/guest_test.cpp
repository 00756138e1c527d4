// SPDX-License-Identifier: Apache-2.0
// Parts of plain LibTorch, with the headers that a program without Accelerator and Trainer
// includes.
#include <gtest/gtest.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "ladder/comm/process_group.h"
#include "ladder/data/dataset.h"
#include "ladder/guest/adapt.h"
#include "ladder/guest/torch_dataset.h"
#include "ladder/nn/model.h"
#include "ladder/parallel/distributed_data_parallel.h"

namespace ladder {
namespace {

TEST(Adapt, LetsDistributedDataParallelTakeAnyModuleUnderItsOwnNames) {
  const torch::nn::Linear linear(2, 3);
  DistributedDataParallel model(linear, ProcessGroup::single());
  EXPECT_EQ(&unwrapped(model), linear.get());
  const auto x = torch::ones({4, 2});
  EXPECT_TRUE(torch::equal(model.forward(x), linear.ptr()->forward(x)));
}

TEST(TorchDataset, GivesTheBatchesOfADataSetOfTorchData) {
  const auto rows = torch::arange(12).view({6, 2});
  auto plain = torch::data::datasets::TensorDataset(rows);
  auto stacked = torch::data::datasets::TensorDataset(rows).map(
      torch::data::transforms::Stack<torch::data::TensorExample>());
  const TorchDataset of_plain(plain);
  const TorchDataset of_stacked(stacked);
  const std::vector<std::int64_t> indices = {4, 1};
  const auto expected = rows.index_select(0, torch::tensor({4, 1}));
  EXPECT_EQ(of_plain.size(), 6);
  EXPECT_TRUE(torch::equal(of_plain.get_batch(indices).inputs.only(), expected));
  EXPECT_TRUE(torch::equal(of_stacked.get_batch(indices).inputs.only(), expected));
  EXPECT_FALSE(of_plain.get_batch(indices).targets.defined());
  const TensorDataset of_tensors(rows, rows.select(1, 0));
  EXPECT_TRUE(torch::equal(of_tensors.get_batch(indices).targets, torch::tensor({8, 2})));
}

}  // namespace
}  // namespace ladder
