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

TEST(SequentialSampler, CountsUpInEveryEpochAndEverySamplerOfNothingIsEmpty) {
  const SequentialSampler sampler(4);
  EXPECT_EQ(sampler.size(), 4);
  EXPECT_EQ(sampler.order(0), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(sampler.order(9), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(SequentialSampler(0).order(0), Indices{});
  EXPECT_EQ(RandomSampler(0, 42).order(0), Indices{});
}

BatchSampler make_batches(std::int64_t size, std::int64_t batch_size, bool drop_last = false) {
  return {std::make_shared<SequentialSampler>(size), batch_size, drop_last};
}

TEST(BatchSampler, LeavesTheRemainderToAShorterLastBatchOrOut) {
  struct Case {
    std::int64_t size;
    std::int64_t batch_size;
    Indices sizes;
    Indices whole;  // with drop_last
  };
  for (const auto& [size, batch_size, sizes, whole] : {Case{10, 4, {4, 4, 2}, {4, 4}},
                                                       {8, 4, {4, 4}, {4, 4}},
                                                       {3, 64, {3}, {}},
                                                       {0, 64, {}, {}}}) {
    for (const bool drop_last : {false, true}) {
      const auto batches = make_batches(size, batch_size, drop_last);
      Indices got;
      Indices positions;
      for (const auto& plan : batches.batches_of(0)) {
        got.push_back(plan.global_size);
        EXPECT_EQ(std::ssize(plan.indices), plan.global_size);
        EXPECT_EQ(plan.world_size, 1);
        EXPECT_EQ(plan.indices, plan.positions);
        positions.insert(positions.end(), plan.positions.begin(), plan.positions.end());
      }
      EXPECT_EQ(got, drop_last ? whole : sizes) << size << " by " << batch_size;
      EXPECT_EQ(batches.size(), std::ssize(got));
      EXPECT_EQ(positions, SequentialSampler(std::ssize(positions)).order(0));
    }
  }
  EXPECT_ERROR(make_batches(10, 0), UsageError, "batch_size: expected 1 to 10000000, got 0");
  EXPECT_ERROR(make_batches(10, -4), UsageError, "batch_size: expected 1 to 10000000, got -4");
}

TEST(BatchSampler, PositionsArePlacesInTheOrderNotIndices) {
  const auto sampler = std::make_shared<RandomSampler>(10, 42);
  Indices indices, positions;
  for (const auto& plan : BatchSampler(sampler, 3, false).batches_of(1)) {
    indices.insert(indices.end(), plan.indices.begin(), plan.indices.end());
    positions.insert(positions.end(), plan.positions.begin(), plan.positions.end());
  }
  EXPECT_EQ(indices, sampler->order(1));
  EXPECT_EQ(positions, SequentialSampler(10).order(0));
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
