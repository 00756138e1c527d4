// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/inputs.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/data/batch.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

std::vector<std::string> names_of(const Inputs& inputs) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : inputs) names.push_back(name);
  return names;
}

// A function that takes Inputs, as a network's forward does.
std::size_t count(const Inputs& inputs) { return inputs.size(); }

TEST(Inputs, AreMadeFromATensorOrFromNamedTensors) {
  const auto images = torch::zeros({3, 2});
  EXPECT_EQ(count(images), 1U);
  EXPECT_EQ(count({{"image", images}, {"text", images}}), 2U);
  EXPECT_EQ(count({}), 0U);
  EXPECT_EQ(names_of(images), (std::vector<std::string>{"x"}));
  EXPECT_TRUE(Inputs(images).only().is_same(images));
}

TEST(Inputs, KeepTheirOrderAndFindByName) {
  const auto a = torch::zeros({3});
  const auto b = torch::ones({3});
  Inputs inputs = {{"b", b}, {"a", a}};
  EXPECT_EQ(names_of(inputs), (std::vector<std::string>{"b", "a"}));
  EXPECT_TRUE(inputs.at("a").is_same(a));
  EXPECT_TRUE(inputs.contains("b"));
  EXPECT_FALSE(inputs.contains("c"));
  inputs.set("b", a);
  inputs.set("c", b);
  EXPECT_EQ(names_of(inputs), (std::vector<std::string>{"b", "a", "c"}));
  EXPECT_TRUE(inputs.at("b").is_same(a));
}

TEST(Inputs, RefuseWhatIsNotThere) {
  const auto tensor = torch::zeros({3});
  const Inputs two = {{"image", tensor}, {"text", tensor}};
  EXPECT_ERROR(two.at("imag"), UsageError,
               "Inputs: expected one of image, text, got 'imag'; hint: did you mean image?");
  EXPECT_ERROR(two.only(), UsageError, "Inputs::only: expected one tensor, got '2 tensors'");
  EXPECT_ERROR(Inputs().only(), UsageError, "got '0 tensors'");
  EXPECT_ERROR(Inputs().rows(), UsageError, "Inputs: expected at least one tensor");
  EXPECT_ERROR(Inputs().device(), UsageError, "Inputs: expected at least one tensor");
  EXPECT_ERROR((Inputs{{"a", tensor}, {"a", tensor}}), UsageError,
               "Inputs: the name a occurs twice");
  EXPECT_ERROR((Inputs{{"", tensor}}), UsageError, "Inputs: expected a name for each tensor");
}

TEST(Inputs, HaveOneNumberOfRows) {
  EXPECT_EQ(Inputs({{"a", torch::zeros({3})}, {"b", torch::zeros({3, 4})}}).rows(), 3);
  EXPECT_ERROR(Inputs({{"a", torch::zeros({3})}, {"b", torch::zeros({2, 4})}}).rows(), UsageError,
               "input b: expected 3 rows, as a has, got '2 rows'");
  EXPECT_ERROR(Inputs(torch::zeros({})).rows(), UsageError,
               "input x: expected one row per sample, got 'a scalar'");
}

TEST(Inputs, MapAndChunkKeepNames) {
  const Inputs inputs = {{"a", torch::arange(5)}, {"b", torch::arange(10).view({5, 2})}};
  const auto doubled = inputs.map([](const torch::Tensor& tensor) { return tensor * 2; });
  EXPECT_EQ(names_of(doubled), names_of(inputs));
  EXPECT_TRUE(torch::equal(doubled.at("a"), torch::arange(5) * 2));
  const auto parts = inputs.chunk(2);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].rows(), 3);
  EXPECT_EQ(parts[1].rows(), 2);
  EXPECT_TRUE(torch::equal(parts[1].at("b"), torch::arange(6, 10).view({2, 2})));
  EXPECT_EQ(Inputs(torch::zeros({1, 2})).chunk(4).size(), 1U) << "as torch::Tensor::chunk";
  EXPECT_ERROR(Inputs({{"a", torch::zeros({3})}, {"b", torch::zeros({2})}}).chunk(2), UsageError,
               "input b: expected 3 rows");
}

TEST(Inputs, SplitInPiecesOfOneSizeAndAShorterLast) {
  const Inputs inputs = {{"a", torch::arange(5)}, {"b", torch::arange(10).view({5, 2})}};
  const auto parts = inputs.split(2);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].rows(), 2);
  EXPECT_EQ(parts[2].rows(), 1);
  EXPECT_EQ(names_of(parts[2]), names_of(inputs));
  EXPECT_TRUE(torch::equal(parts[1].at("b"), torch::arange(4, 8).view({2, 2})));
  EXPECT_EQ(inputs.split(5).size(), 1U);
  EXPECT_EQ(inputs.split(64).size(), 1U);
  EXPECT_TRUE(Inputs(torch::zeros({0, 2})).split(2).empty());
  EXPECT_ERROR(Inputs({{"a", torch::zeros({3})}, {"b", torch::zeros({2})}}).split(2), UsageError,
               "input b: expected 3 rows");
}

TEST(Batch, MovesEveryTensorAndNeedsNoTargets) {
  const Batch batch = {.inputs = {{"a", torch::zeros({2})}, {"b", torch::zeros({2})}}};
  EXPECT_EQ(batch.size(), 2);
  const auto moved = batch.to(torch::kCPU);
  EXPECT_TRUE(moved.inputs.at("b").is_same(batch.inputs.at("b")));
  EXPECT_FALSE(moved.targets.defined());
}

}  // namespace
}  // namespace ladder
