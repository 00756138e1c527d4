// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/sampler.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/io/sha256.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace ladder {
namespace {

using Indices = std::vector<std::int64_t>;

TEST(RandomSampler, GivesPythonsOrderIndexByIndex) {
  const auto& golden = golden_json("samplers.json");
  ASSERT_GE(golden.at("cases").size(), 45U);
  for (const auto& wanted : golden.at("cases")) {
    SCOPED_TRACE(wanted.dump());
    const RandomSampler sampler(wanted.at("n"), wanted.at("seed"));
    const Indices order = sampler.order(wanted.at("epoch"));
    const auto first = wanted.at("first").get<Indices>();
    EXPECT_EQ(Indices(order.begin(), order.begin() + std::ssize(first)), first);
    EXPECT_EQ(sha256_hex(std::as_bytes(std::span(order))), wanted.at("sha256").get<std::string>());
  }
}

TEST(RandomSampler, IsAFunctionOfTheSumOfSeedAndEpoch) {
  EXPECT_EQ(RandomSampler(100, 42).order(3), RandomSampler(100, 42).order(3));
  EXPECT_EQ(RandomSampler(100, 42).order(3), RandomSampler(100, 45).order(0));
  EXPECT_NE(RandomSampler(100, 42).order(3), RandomSampler(100, 42).order(4));
}

TEST(RandomSampler, OfNothingIsEmpty) { EXPECT_EQ(RandomSampler(0, 42).order(0), Indices{}); }

TEST(SequentialSampler, CountsUpInEveryEpoch) {
  const SequentialSampler sampler(4);
  EXPECT_EQ(sampler.size(), 4);
  EXPECT_EQ(sampler.order(0), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(sampler.order(9), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(SequentialSampler(0).order(0), Indices{});
}

BatchSampler make_batches(std::int64_t size, std::int64_t batch_size, bool drop_last = false) {
  return {std::make_shared<SequentialSampler>(size), batch_size, drop_last};
}

TEST(BatchSampler, LeavesTheRemainderToAShorterLastBatch) {
  const auto batches = make_batches(10, 4);
  const auto plans = batches.batches_of(0);
  EXPECT_EQ(batches.size(), 3);
  ASSERT_EQ(plans.size(), 3U);
  EXPECT_EQ(plans[0].indices, (Indices{0, 1, 2, 3}));
  EXPECT_EQ(plans[2].indices, (Indices{8, 9}));
  EXPECT_EQ(plans[2].positions, (Indices{8, 9}));
  EXPECT_EQ(plans[0].global_size, 4);
  EXPECT_EQ(plans[2].global_size, 2);
  EXPECT_EQ(plans[2].world_size, 1);
}

TEST(BatchSampler, LeavesTheRemainderOutIfAsked) {
  const auto batches = make_batches(10, 4, /*drop_last=*/true);
  EXPECT_EQ(batches.size(), 2);
  const auto plans = batches.batches_of(0);
  ASSERT_EQ(plans.size(), 2U);
  EXPECT_EQ(plans[1].indices, (Indices{4, 5, 6, 7}));
}

TEST(BatchSampler, HasOnlyWholeBatchesWhenTheSizeDivides) {
  for (const bool drop_last : {false, true}) {
    EXPECT_EQ(make_batches(8, 4, drop_last).size(), 2);
    EXPECT_EQ(make_batches(8, 4, drop_last).batches_of(0).back().global_size, 4);
  }
}

TEST(BatchSampler, KeepsASetThatIsSmallerThanABatch) {
  EXPECT_EQ(make_batches(3, 64).batches_of(0).at(0).indices, (Indices{0, 1, 2}));
  EXPECT_EQ(make_batches(3, 64, /*drop_last=*/true).size(), 0);
  EXPECT_TRUE(make_batches(3, 64, /*drop_last=*/true).batches_of(0).empty());
  EXPECT_TRUE(make_batches(0, 64).batches_of(0).empty());
}

TEST(BatchSampler, PositionsArePlacesInTheOrderNotIndices) {
  const auto sampler = std::make_shared<RandomSampler>(10, 42);
  const auto order = sampler->order(1);
  Indices indices, positions;
  for (const auto& plan : BatchSampler(sampler, 3, false).batches_of(1)) {
    indices.insert(indices.end(), plan.indices.begin(), plan.indices.end());
    positions.insert(positions.end(), plan.positions.begin(), plan.positions.end());
  }
  EXPECT_EQ(indices, order);
  EXPECT_EQ(positions, (Indices{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(BatchSampler, RefusesABatchOfNothing) {
  EXPECT_ERROR(make_batches(10, 0), UsageError, "batch_size: expected 1 to 10000000, got 0");
  EXPECT_ERROR(make_batches(10, -4), UsageError, "batch_size: expected 1 to 10000000, got -4");
}

TEST(LimitedBatchSampler, AreThoseOfEachEpoch) {
  const auto whole =
      std::make_shared<BatchSampler>(std::make_shared<RandomSampler>(10, 42), 4, false);
  const LimitedBatchSampler first(whole, 2);
  EXPECT_EQ(first.size(), 2);
  EXPECT_EQ(first.whole_size(), 8);
  for (const std::int64_t epoch : {0, 1}) {
    const auto plans = first.batches_of(epoch);
    const auto expected = whole->batches_of(epoch);
    ASSERT_EQ(plans.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(plans[i].indices, expected[i].indices);
  }
}

TEST(LimitedBatchSampler, CountTheSamplesOfAShortLastBatch) {
  const auto whole = std::make_shared<BatchSampler>(make_batches(10, 4));
  EXPECT_EQ(LimitedBatchSampler(whole, 3).whole_size(), 10);
  EXPECT_EQ(LimitedBatchSampler(whole, 99).size(), 3);
  EXPECT_ERROR(LimitedBatchSampler(whole, 0), UsageError, "limit_batches");
}

}  // namespace
}  // namespace ladder
