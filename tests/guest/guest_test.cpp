// SPDX-License-Identifier: Apache-2.0
// Parts of plain LibTorch, with the headers that a program without Accelerator and Trainer
// includes.
#include <gtest/gtest.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "ladder/comm/process_group.h"
#include "ladder/core/error.h"
#include "ladder/data/data_loader.h"
#include "ladder/data/dataset.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/data/sampler.h"
#include "ladder/guest/adapt.h"
#include "ladder/guest/optimizer_archive.h"
#include "ladder/guest/torch_dataset.h"
#include "ladder/nn/model.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "tests/support/expect_error.h"

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

TEST(TorchDataset, GivesARankWithoutASampleOfTheLastBatchZeroRows) {
  auto plain = torch::data::datasets::TensorDataset(torch::arange(10).view({5, 2}));
  const auto data = std::make_shared<TorchDataset<decltype(plain)>>(plain);
  const auto part = std::make_shared<ShardedBatchSampler>(
      make_sampler(5, /*shuffle=*/false, /*seed=*/0),
      ShardedBatchSamplerOptions{.batch_size = 4, .rank = 1, .world_size = 2});
  const DataLoader loader(data, {.batch_sampler = part});
  std::vector<std::vector<std::int64_t>> sizes;
  for (const Batch& batch : loader) sizes.push_back(batch.inputs.only().sizes().vec());
  EXPECT_EQ(sizes, (std::vector<std::vector<std::int64_t>>{{2, 2}, {0, 2}}));
}

// A file whose hash fits may have been written by another program.
TEST(OptimizerArchive, RefusesAFileOfAnotherForm) {
  torch::nn::Linear network(2, 1);
  torch::optim::LBFGS lbfgs(network->parameters());
  lbfgs.step([&] {
    lbfgs.zero_grad();
    const auto loss = network->forward(torch::ones({1, 2})).square().sum();
    loss.backward();
    return loss;
  });
  const auto good = archive_of(lbfgs);
  EXPECT_NO_THROW(plan_load_archive(lbfgs, good, "o")());
  const auto refuses = [&](const nlohmann::json& archive, const std::string& text) {
    auto file = good;
    file.metadata["archive"] = archive.dump();
    EXPECT_ERROR(std::ignore = plan_load_archive(lbfgs, file, "o"), DataError,
                 "o: expected " + text);
  };
  const auto archive = nlohmann::json::parse(good.metadata.at("archive"));
  const auto changed = [&](const std::string& path, const nlohmann::json& value) {
    auto copy = archive;
    copy[nlohmann::json::json_pointer(path)] = value;
    return copy;
  };
  std::string list;  // of tensors
  for (const auto& [name, value] : archive.at("values").items()) {
    if (value.is_object()) list = name;
  }
  ASSERT_NE(list, "");
  refuses(3, "an object");
  refuses(changed("/class", 3), "a text as \"class\"");
  refuses(changed("/values", 3), "an object as \"values\"");
  refuses(changed("/values/" + list + "/tensors", 1000), "a whole number from 0 to ");
  refuses(changed("/values/" + list + "/tensors", "x"), "a whole number from 0 to ");
  auto file = good;
  file.tensors.erase(list + ".0");
  EXPECT_ERROR(std::ignore = plan_load_archive(lbfgs, file, "o"), DataError,
               "o: expected 0 tensors as");
}

}  // namespace
}  // namespace ladder
