// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/distributed_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/data/sampler.h"
#include "ladder/io/sha256.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace ladder {
namespace {

using Indices = std::vector<std::int64_t>;

void append(Indices& all, const Indices& more) { all.insert(all.end(), more.begin(), more.end()); }

DistributedSampler distributed(std::int64_t size, std::int64_t world_size, std::int64_t rank,
                               bool drop_last = false) {
  return DistributedSampler(size, {.world_size = world_size, .rank = rank, .drop_last = drop_last});
}

ExactEvalSampler exact(std::int64_t size, std::int64_t world_size, std::int64_t rank) {
  return ExactEvalSampler(size, {.world_size = world_size, .rank = rank});
}

void expect_as_recorded(const Indices& order, const nlohmann::json& wanted, std::size_t rank) {
  if (wanted.contains("indices")) {
    EXPECT_EQ(order, wanted.at("indices").at(rank).get<Indices>());
  } else {
    EXPECT_EQ(std::ssize(order), wanted.at("counts").at(rank));
    EXPECT_EQ(sha256_hex(std::as_bytes(std::span(order))),
              wanted.at("sha256").at(rank).get<std::string>());
  }
}

TEST(DistributedSampler, GivesEachRankPythonsIndices) {
  const auto& golden = golden_json("distributed_samplers.json");
  ASSERT_GE(golden.at("cases").size(), 170U);
  for (const auto& wanted : golden.at("cases")) {
    const std::int64_t world_size = wanted.at("world_size");
    for (std::int64_t rank = 0; rank < world_size; ++rank) {
      SCOPED_TRACE(wanted.dump().substr(0, 150) + " rank " + std::to_string(rank));
      const DistributedSampler sampler(wanted.at("n"), {.world_size = world_size,
                                                        .rank = rank,
                                                        .shuffle = wanted.at("shuffle"),
                                                        .seed = wanted.at("seed"),
                                                        .drop_last = wanted.at("drop_last")});
      const Indices order = sampler.order(wanted.at("epoch"));
      EXPECT_EQ(std::ssize(order), sampler.size());
      expect_as_recorded(order, wanted, static_cast<std::size_t>(rank));
    }
  }
}

TEST(DistributedSampler, GivesEveryPlaceOfTheSharedOrderToOneRank) {
  for (const std::int64_t world_size : {1, 7}) {
    for (const std::int64_t size : {1, 5, 10, 100}) {
      const Indices order = RandomSampler(size, 42).order(2);
      Indices places;
      for (std::int64_t rank = 0; rank < world_size; ++rank) {
        const auto sampler = distributed(size, world_size, rank);
        const Indices part = sampler.order(2);
        for (std::int64_t k = 0; k < sampler.size(); ++k) {
          places.push_back(sampler.position(k));
          EXPECT_EQ(part[static_cast<std::size_t>(k)],
                    order[static_cast<std::size_t>(places.back() % size)]);
        }
      }
      std::sort(places.begin(), places.end());
      const std::int64_t padded = (size + world_size - 1) / world_size * world_size;
      EXPECT_EQ(places, SequentialSampler(padded).order(0)) << "padding goes on past it";
    }
  }
  EXPECT_EQ(distributed(0, 3, 1).order(0), Indices{});
  EXPECT_EQ(distributed(0, 3, 1, true).order(0), Indices{});
}

TEST(ExactEvalSampler, GivesEverySampleOnceForEveryNumberOfRanks) {
  for (const std::int64_t size : {0L, 1L, 5L, 100L, 10000L}) {
    for (std::int64_t world_size = 1; world_size <= 8; ++world_size) {
      SCOPED_TRACE(testing::Message() << size << " samples on " << world_size << " ranks");
      Indices all;
      for (std::int64_t rank = 0; rank < world_size; ++rank) {
        const auto sampler = exact(size, world_size, rank);
        EXPECT_EQ(sampler.size(), size / world_size + (rank < size % world_size ? 1 : 0));
        EXPECT_EQ(exact(size, world_size, 0).part_size(rank), sampler.size());
        const auto part = sampler.order(3);
        ASSERT_EQ(std::ssize(part), sampler.size());
        for (std::int64_t k = 0; k < sampler.size(); ++k) {
          EXPECT_EQ(part[static_cast<std::size_t>(k)], rank + k * world_size)
              << "as DistributedSampler without shuffle and without its repetitions";
          EXPECT_EQ(sampler.position(k), rank + k * world_size);
        }
        append(all, part);
      }
      std::sort(all.begin(), all.end());
      EXPECT_EQ(all, SequentialSampler(size).order(0));
    }
  }
}

TEST(ExactEvalSampler, AloneIsForEvaluationOnly) {
  const auto one = std::make_shared<ExactEvalSampler>(10);
  EXPECT_TRUE(one->evaluation_only()) << "on one rank too";
  EXPECT_FALSE(distributed(10, 2, 0).evaluation_only());
  EXPECT_FALSE(SequentialSampler(10).evaluation_only());
  EXPECT_TRUE(ShardedBatchSampler(one).evaluation_only());
  EXPECT_FALSE(ShardedBatchSampler(std::make_shared<SequentialSampler>(10)).evaluation_only());
  const auto whole = std::make_shared<BatchSampler>(one, 4, false);
  EXPECT_TRUE(ShardedBatchSampler(whole, {.world_size = 2}).evaluation_only());
  EXPECT_ERROR(BatchSampler(one, 4, /*drop_last=*/true), UsageError,
               "drop_last: an evaluation sampler must not drop samples");
}

// Batches of one rank's part: each rank reads batch_size samples.

std::vector<BatchIndices> plans_of(std::shared_ptr<const Sampler> sampler, std::int64_t batch_size,
                                   bool drop_last = false) {
  const BatchSampler batches(std::move(sampler), batch_size, drop_last);
  auto plans = batches.batches_of(0);
  EXPECT_EQ(std::ssize(plans), batches.size());
  return plans;
}

// The batches of all ranks, whose samples must be those that each of them counts.
template <typename MakeSampler>
std::vector<std::vector<BatchIndices>> counted_plans(std::int64_t world_size,
                                                     const MakeSampler& sampler_of,
                                                     std::int64_t batch_size, bool drop_last) {
  std::vector<std::vector<BatchIndices>> ranks;
  Indices global_sizes(200, 0);
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    ranks.push_back(plans_of(sampler_of(rank), batch_size, drop_last));
    for (std::size_t k = 0; k < ranks.back().size(); ++k) {
      global_sizes.at(k) += std::ssize(ranks.back()[k].indices);
    }
  }
  for (const auto& plans : ranks) {
    for (std::size_t k = 0; k < plans.size(); ++k) {
      EXPECT_EQ(plans[k].global_size, global_sizes[k]) << "batch " << k;
      EXPECT_EQ(plans[k].world_size, world_size);
    }
  }
  return ranks;
}

TEST(BatchSamplerOfAPart, GivesAllRanksTheSameNumberOfStepsInTraining) {
  for (std::int64_t size : {1, 10, 63, 64, 65, 100}) {
    for (const bool drop_last : {false, true}) {
      const auto part = [&](std::int64_t rank) {
        return std::make_shared<DistributedSampler>(distributed(size, 7, rank));
      };
      const auto ranks = counted_plans(7, part, 4, drop_last);
      for (const auto& plans : ranks) {
        ASSERT_EQ(plans.size(), ranks.front().size());
        for (const auto& plan : plans) EXPECT_EQ(plan.global_size, 7 * std::ssize(plan.indices));
      }
    }
  }
  const auto part = std::make_shared<DistributedSampler>(distributed(10, 3, 1));
  const auto plans = plans_of(part, 3);  // 4 samples on each rank
  EXPECT_EQ(plans.at(0).positions, (Indices{1, 4, 7}));
  EXPECT_EQ(plans.at(1).positions, (Indices{10}));  // of 10 samples: the first, repeated
  EXPECT_EQ(plans.at(1).indices, (Indices{RandomSampler(10, 42).order(0)[0]}));
  EXPECT_EQ(plans_of(part, 3, /*drop_last=*/true).size(), 1U);
}

// With unequal parts, ranks have unequal batches, and some have one batch more.
TEST(BatchSamplerOfAPart, KnowsTheSizeOfABatchWhoseRanksHaveUnequalParts) {
  for (const std::int64_t size : {1, 9, 10, 11, 12, 13}) {
    for (const std::int64_t batch_size : {1, 2, 3, 64}) {
      SCOPED_TRACE(testing::Message() << size << " by " << batch_size);
      const auto part = [&](std::int64_t rank) {
        return std::make_shared<ExactEvalSampler>(exact(size, 4, rank));
      };
      counted_plans(4, part, batch_size, /*drop_last=*/false);
    }
  }
}

// A sampler of one's own, with four samples on this rank and `other` on the other one.
struct Unequal : SequentialSampler {
  explicit Unequal(std::int64_t other) : SequentialSampler(4), other_(other) {}
  std::int64_t world_size() const override { return 2; }
  std::int64_t part_size(std::int64_t rank) const override { return rank == 0 ? 4 : other_; }
  std::int64_t other_;
};

TEST(BatchSamplerOfAPart, CountsNeitherAShortBatchThatAnotherRankLeavesOutNorOneThatItLacks) {
  EXPECT_EQ(plans_of(std::make_shared<Unequal>(3), 2, /*drop_last=*/true).at(1).global_size, 2);
  EXPECT_EQ(plans_of(std::make_shared<Unequal>(3), 2, /*drop_last=*/false).at(1).global_size, 3);
  EXPECT_EQ(plans_of(std::make_shared<Unequal>(1), 2).at(1).global_size, 2);
}

// One rank's slice of every batch, with micro_batch > 0 of whole micro-batches.

ShardedBatchSampler sharded(std::int64_t size, std::int64_t batch_size, std::int64_t world_size,
                            std::int64_t rank, bool drop_last = false,
                            std::int64_t micro_batch = 0) {
  return ShardedBatchSampler(std::make_shared<RandomSampler>(size, 42),
                             {.batch_size = batch_size,
                              .drop_last = drop_last,
                              .rank = rank,
                              .world_size = world_size,
                              .micro_batch = micro_batch});
}

struct Slices {
  std::int64_t size;
  std::int64_t batch_size;
  std::int64_t micro_batch;
  std::size_t batch;  // its number
  Indices samples;    // of it, on each rank
};

TEST(ShardedBatchSampler, GivesWhatRemainsToTheFirstRanksAndMayLeaveOneWithoutASample) {
  const std::vector<Slices> cases = {{64, 64, 0, 0, {10, 9, 9, 9, 9, 9, 9}},
                                     {64, 64, 0, 0, {22, 21, 21}},
                                     {64, 64, 0, 0, {16, 16, 16, 16}},
                                     {67, 64, 0, 1, {1, 1, 1, 0}},
                                     {5, 2, 0, 0, {1, 1, 0, 0}},  // batches smaller than the world
                                     {64, 64, 16, 0, {16, 16, 16, 16, 0, 0, 0}},
                                     {64, 64, 16, 0, {32, 16, 16}},
                                     {64, 64, 8, 0, {24, 24, 16}},
                                     {40, 40, 16, 0, {32, 8}},
                                     {40, 40, 64, 0, {40, 0}},
                                     {64, 64, 16, 0, {64}},
                                     {64, 64, 1, 0, {10, 9, 9, 9, 9, 9, 9}},
                                     {67, 64, 16, 1, {3, 0}},
                                     {64 + 33, 64, 16, 1, {32, 1}},
                                     {64 + 33, 64, 16, 1, {16, 16, 1, 0}}};
  for (const auto& [size, batch_size, micro_batch, batch, samples] : cases) {
    const auto world_size = std::ssize(samples);
    const auto sum = std::accumulate(samples.begin(), samples.end(), std::int64_t{0});
    Indices got;
    for (std::int64_t rank = 0; rank < world_size; ++rank) {
      const auto sampler = sharded(size, batch_size, world_size, rank, false, micro_batch);
      const auto plan = sampler.batches_of(0).at(batch);
      got.push_back(std::ssize(plan.indices));
      EXPECT_EQ(plan.positions.size(), plan.indices.size());
      EXPECT_EQ(plan.world_size, world_size);
      EXPECT_EQ(plan.micro_batch, micro_batch);
      EXPECT_EQ(plan.global_size, sum) << "also on a rank without a sample";
    }
    EXPECT_EQ(got, samples) << size << " by " << batch_size;
  }
}

void expect_same_batches(const std::vector<BatchIndices>& plans,
                         const std::vector<BatchIndices>& wanted) {
  ASSERT_EQ(plans.size(), wanted.size());
  for (std::size_t k = 0; k < plans.size(); ++k) {
    EXPECT_EQ(plans[k].indices, wanted[k].indices) << "batch " << k;
    EXPECT_EQ(plans[k].positions, wanted[k].positions) << "batch " << k;
    EXPECT_EQ(plans[k].global_size, wanted[k].global_size) << "batch " << k;
  }
}

// The slices of all ranks, put together, must be the batches of one.
void expect_batches_of_one(std::int64_t size, std::int64_t batch_size, bool drop_last,
                           std::int64_t micro_batch) {
  const BatchSampler one(std::make_shared<RandomSampler>(size, 42), batch_size, drop_last);
  for (std::int64_t world_size = 1; world_size <= 8; ++world_size) {
    SCOPED_TRACE(testing::Message() << size << " samples by " << batch_size << " in micro-batches "
                                    << micro_batch << " on " << world_size << " ranks");
    std::vector<BatchIndices> whole(static_cast<std::size_t>(one.size()));
    for (std::int64_t rank = 0; rank < world_size; ++rank) {
      const auto sampler = sharded(size, batch_size, world_size, rank, drop_last, micro_batch);
      const auto plans = sampler.batches_of(3);
      EXPECT_EQ(std::ssize(plans), sampler.size());
      ASSERT_EQ(plans.size(), whole.size()) << "steps of rank " << rank;
      for (std::size_t k = 0; k < whole.size(); ++k) {
        if (micro_batch > 0 && !plans[k].indices.empty()) {
          EXPECT_EQ(std::ssize(whole[k].indices) % micro_batch, 0) << "cut before " << rank;
        }
        append(whole[k].indices, plans[k].indices);
        append(whole[k].positions, plans[k].positions);
        EXPECT_EQ(plans[k].world_size, world_size);
        whole[k].global_size = plans[k].global_size;
      }
    }
    expect_same_batches(whole, one.batches_of(3));
  }
}

TEST(ShardedBatchSampler, BatchesOfTheRunAreTheSameForEveryNumberOfRanks) {
  for (const std::int64_t size : {0, 1, 7, 16, 64, 67, 200}) {
    for (const std::int64_t batch_size : {1, 3, 16, 64}) {
      for (const bool drop_last : {false, true}) {
        expect_batches_of_one(size, batch_size, drop_last, 0);
      }
    }
    for (const std::int64_t micro_batch : {1, 3, 16, 100}) {
      expect_batches_of_one(size, 40, false, micro_batch);
    }
  }
}

// Batches of one's own: of 3, 1 and 4 samples, backwards.
struct BackwardsOfEight : BatchSampler {
  BackwardsOfEight()
      : BatchSampler(std::make_shared<SequentialSampler>(8), 4, /*drop_last=*/false) {}
  std::int64_t size() const override { return 3; }
  std::vector<BatchIndices> batches_of(std::int64_t epoch) const override {
    const std::int64_t first = 10 * epoch;
    return {{.indices = {first + 7, first + 6, first + 5}, .positions = {0, 1, 2}},
            {.indices = {first + 4}, .positions = {3}},
            {.indices = {first + 3, first + 2, first + 1, first}, .positions = {4, 5, 6, 7}}};
  }
};

TEST(ShardedBatchSampler, SlicesBatchesThatAreThereAlready) {
  const auto slices = [](std::int64_t rank, std::int64_t micro_batch) {
    const ShardedBatchSampler sampler(std::make_shared<BackwardsOfEight>(),
                                      {.rank = rank, .world_size = 2, .micro_batch = micro_batch});
    EXPECT_EQ(sampler.size(), 3);
    EXPECT_EQ(sampler.whole_size(), 8);
    EXPECT_EQ(sampler.world_size(), 2);
    EXPECT_EQ(sampler.batches_of(1).at(1).global_size, 1);
    EXPECT_EQ(sampler.batches_of(1).at(1).world_size, 2);
    if (rank == 1 && micro_batch == 0) {
      EXPECT_EQ(sampler.batches_of(1).at(2).positions, (Indices{6, 7}));
    }
    std::vector<Indices> batches;
    for (const auto& plan : sampler.batches_of(1)) batches.push_back(plan.indices);
    return batches;
  };
  EXPECT_EQ(slices(0, 0), (std::vector<Indices>{{17, 16}, {14}, {13, 12}}));
  EXPECT_EQ(slices(1, 0), (std::vector<Indices>{{15}, {}, {11, 10}}));
  EXPECT_EQ(slices(1, 3), (std::vector<Indices>{{}, {}, {10}}));
}

TEST(ShardedBatchSampler, SlicesTheBatchesOfASamplerAsItCutsThem) {
  for (const std::int64_t size : {0, 7, 64, 67, 200}) {
    for (const bool drop_last : {false, true}) {
      const auto order = std::make_shared<RandomSampler>(size, 42);
      const auto whole = std::make_shared<BatchSampler>(order, 16, drop_last);
      for (std::int64_t rank = 0; rank < 7; ++rank) {
        const ShardedBatchSampler sampler(whole, {.rank = rank, .world_size = 7});
        const auto cut = sharded(size, 16, 7, rank, drop_last);
        expect_same_batches(sampler.batches_of(2), cut.batches_of(2));
        EXPECT_EQ(sampler.size(), cut.size());
        EXPECT_EQ(sampler.batch_size(), cut.batch_size());
        EXPECT_EQ(sampler.drop_last(), cut.drop_last());
      }
    }
  }
}

TEST(ShardedBatchSampler, HasBatchesOf64ByDefaultAndThoseOfItsBatchSampler) {
  EXPECT_EQ(ShardedBatchSampler(std::make_shared<SequentialSampler>(100)).batch_size(), 64);
  const auto whole = std::make_shared<BackwardsOfEight>();
  EXPECT_ERROR(ShardedBatchSampler(whole, {.batch_size = 4}), UsageError,
               "ShardedBatchSampler: batch_size together with a batch sampler");
  EXPECT_ERROR(ShardedBatchSampler(whole, {.drop_last = true}), UsageError,
               "ShardedBatchSampler: drop_last together with a batch sampler");
}

TEST(ShardedBatchSampler, RefusesToDivideWhatIsDividedAlready) {
  const auto part = std::make_shared<DistributedSampler>(distributed(10, 2, 0));
  const char* refusal = "ShardedBatchSampler: its sampler gives one rank's part";
  EXPECT_ERROR(ShardedBatchSampler(part, {.world_size = 2}), UsageError, refusal);
  EXPECT_ERROR(
      ShardedBatchSampler(std::make_shared<BatchSampler>(part, 4, false), {.world_size = 2}),
      UsageError, refusal);
  EXPECT_ERROR(ShardedBatchSampler(std::make_shared<ShardedBatchSampler>(sharded(10, 4, 2, 0)),
                                   {.world_size = 2}),
               UsageError, refusal);
}

TEST(DivideBatches, CutsWholeMicroBatchesInGlobalModeOnly) {
  const auto divided = [](std::int64_t micro_batch) {
    return divide_batches(
        10, {.batch_size = 4, .rank = 1, .world_size = 2, .micro_batch = micro_batch});
  };
  for (const std::int64_t micro_batch : {0, 3}) {
    expect_same_batches(divided(micro_batch)->batches_of(0),
                        sharded(10, 4, 2, 1, false, micro_batch).batches_of(0));
    EXPECT_EQ(divided(micro_batch)->batches_of(0).at(0).micro_batch, micro_batch);
  }
  EXPECT_ERROR(divided(-1), UsageError,
               "ShardedBatchSampler micro_batch: expected 0 to 10000000, got -1");
  EXPECT_ERROR(divide_batches(10, {.mode = BatchMode::kPerDevice, .micro_batch = 4}), UsageError,
               "divide_batches: micro-batches together with per-device batches; hint: use");
}

// Samples of an epoch that are read, repetitions left out.

TEST(WholeSize, IsTheLengthOfTheSharedOrder) {
  for (std::int64_t rank = 0; rank < 7; ++rank) {
    const auto part = std::make_shared<DistributedSampler>(distributed(10, 7, rank));
    EXPECT_EQ(part->whole_size(), 10) << "of 14 that are read";
    EXPECT_EQ(BatchSampler(part, 2, false).whole_size(), 10);
    EXPECT_EQ(BatchSampler(part, 2, false).world_size(), 7);
    EXPECT_EQ(exact(10, 7, rank).whole_size(), 10);
    EXPECT_EQ(sharded(10, 4, 7, rank).whole_size(), 10);
    EXPECT_EQ(sharded(10, 4, 7, rank).world_size(), 7);
  }
  EXPECT_EQ(SequentialSampler(10).whole_size(), 10);
  EXPECT_EQ(Unequal(3).whole_size(), 7) << "what the ranks have together";
}

TEST(Samplers, RefuseARankOrABatchThatCannotBe) {
  const std::string of_ranks = " world_size: expected 1 to 100000, got ";
  EXPECT_ERROR(distributed(10, 3, 3), UsageError,
               "DistributedSampler rank: expected 0 to 2, got 3; hint: 3 ranks count from 0");
  EXPECT_ERROR(distributed(10, 3, -1), UsageError, "rank: expected 0 to 2, got -1");
  EXPECT_ERROR(distributed(10, 0, 0), UsageError, "DistributedSampler" + of_ranks + "0");
  EXPECT_ERROR(distributed(10, -2, 0), UsageError, "DistributedSampler" + of_ranks + "-2");
  EXPECT_ERROR(exact(10, 2, 2), UsageError, "ExactEvalSampler rank: expected 0 to 1, got 2");
  EXPECT_ERROR(exact(10, 0, 0), UsageError, "ExactEvalSampler" + of_ranks + "0");
  EXPECT_ERROR(sharded(10, 4, 2, 2), UsageError, "ShardedBatchSampler rank: expected 0 to 1, got");
  EXPECT_ERROR(sharded(10, 4, 2, -1), UsageError, "rank: expected 0 to 1, got -1");
  EXPECT_ERROR(sharded(10, 4, 0, 0), UsageError, "ShardedBatchSampler" + of_ranks + "0");
  EXPECT_ERROR(sharded(10, 0, 2, 0), UsageError, "batch_size: expected 1 to 10000000, got 0");
}

// --- Samplers of one process ---

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
  const auto padded = std::make_shared<DistributedSampler>(
      10, DistributedSamplerOptions{.world_size = 4});  // 12 indices
  const auto batches = std::make_shared<BatchSampler>(padded, 2, false);
  EXPECT_EQ(LimitedBatchSampler(batches, 99).whole_size(), 10);
  EXPECT_ERROR(LimitedBatchSampler(whole, 0), UsageError, "limit_batches");
}

}  // namespace
}  // namespace ladder
