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
#include "ladder/io/sha256.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace ladder {
namespace {

using Indices = std::vector<std::int64_t>;

constexpr std::int64_t kTestImages = 10000;
constexpr std::int64_t kSevenRanks = 7;

void append(Indices& all, const Indices& more) { all.insert(all.end(), more.begin(), more.end()); }

std::int64_t distinct(const Indices& indices) {
  return std::ssize(std::set<std::int64_t>(indices.begin(), indices.end()));
}

// What all ranks together read, rank after rank.
template <typename MakeSampler>
Indices of_all_ranks(std::int64_t world_size, const MakeSampler& make_sampler) {
  Indices all;
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    const auto sampler = make_sampler(rank);
    EXPECT_EQ(std::ssize(sampler.order(0)), sampler.size());
    append(all, sampler.order(0));
  }
  return all;
}

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

TEST(DistributedSampler, RepeatsThreeOfTenThousandOnSevenRanksOrDropsFour) {
  const auto padded =
      of_all_ranks(kSevenRanks, [](auto rank) { return distributed(10000, 7, rank); });
  EXPECT_EQ(padded.size(), 10003U);
  EXPECT_EQ(distinct(padded), 10000);
  const auto dropped =
      of_all_ranks(kSevenRanks, [](auto rank) { return distributed(10000, 7, rank, true); });
  EXPECT_EQ(dropped.size(), 9996U);
  EXPECT_EQ(distinct(dropped), 9996);
}

TEST(DistributedSampler, OfOneRankIsTheRandomSampler) {
  EXPECT_EQ(DistributedSampler(100).order(3), RandomSampler(100, 42).order(3));
  EXPECT_EQ(DistributedSampler(100).position(17), 17);
}

TEST(DistributedSampler, HasAnOrderOfItsOwnForEveryEpoch) {
  std::set<Indices> orders;
  for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
    orders.insert(distributed(100, 3, 1).order(epoch));
  }
  EXPECT_EQ(orders.size(), 5U);
}

TEST(DistributedSampler, GivesEveryPlaceOfTheSharedOrderToOneRank) {
  for (const std::int64_t size : {1, 5, 10, 100}) {
    const Indices order = RandomSampler(size, 42).order(2);
    Indices places;
    for (std::int64_t rank = 0; rank < 7; ++rank) {
      const auto sampler = distributed(size, 7, rank);
      const Indices part = sampler.order(2);
      for (std::int64_t k = 0; k < sampler.size(); ++k) {
        const std::int64_t place = sampler.position(k);
        places.push_back(place);
        EXPECT_EQ(part[static_cast<std::size_t>(k)], order[static_cast<std::size_t>(place % size)]);
      }
    }
    std::sort(places.begin(), places.end());
    EXPECT_EQ(places, SequentialSampler((size + 6) / 7 * 7).order(0)) << "padding goes on past it";
  }
}

TEST(DistributedSampler, OfNothingIsEmpty) {
  EXPECT_EQ(distributed(0, 3, 1).order(0), Indices{});
  EXPECT_EQ(distributed(0, 3, 1, true).order(0), Indices{});
}

TEST(DistributedSampler, RefusesARankThatCannotBe) {
  EXPECT_ERROR(distributed(10, 3, 3), UsageError,
               "DistributedSampler rank: expected 0 to 2, got 3; hint: 3 ranks count from 0");
  EXPECT_ERROR(distributed(10, 3, -1), UsageError,
               "DistributedSampler rank: expected 0 to 2, got -1");
  EXPECT_ERROR(distributed(10, 0, 0), UsageError,
               "DistributedSampler world_size: expected 1 to 100000, got 0");
  EXPECT_ERROR(distributed(10, -2, 0), UsageError,
               "DistributedSampler world_size: expected 1 to 100000, got -2");
}

TEST(ExactEvalSampler, GivesEverySampleOnceForEveryNumberOfRanks) {
  for (const std::int64_t size : {0L, 1L, 5L, 100L, kTestImages}) {
    for (std::int64_t world_size = 1; world_size <= 8; ++world_size) {
      auto all = of_all_ranks(world_size, [&](auto rank) { return exact(size, world_size, rank); });
      std::sort(all.begin(), all.end());
      EXPECT_EQ(all, SequentialSampler(size).order(0)) << size << " samples, " << world_size;
    }
  }
}

TEST(ExactEvalSampler, PartsDifferInSizeByAtMostOneAndTheSumIsTheSet) {
  Indices sizes;
  for (std::int64_t rank = 0; rank < kSevenRanks; ++rank) {
    sizes.push_back(exact(kTestImages, kSevenRanks, rank).size());
    EXPECT_EQ(exact(kTestImages, kSevenRanks, 3).part_size(rank), sizes.back());
  }
  EXPECT_EQ(sizes, (Indices{1429, 1429, 1429, 1429, 1428, 1428, 1428}));
  EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}), 10000);
}

TEST(ExactEvalSampler, IsTheDistributedSamplerWithoutItsRepetitions) {
  for (std::int64_t rank = 0; rank < kSevenRanks; ++rank) {
    const DistributedSampler padded(kTestImages,
                                    {.world_size = kSevenRanks, .rank = rank, .shuffle = false});
    const auto sampler = exact(kTestImages, kSevenRanks, rank);
    Indices wanted = padded.order(0);
    wanted.resize(static_cast<std::size_t>(sampler.size()));
    EXPECT_EQ(sampler.order(0), wanted);
    EXPECT_EQ(sampler.position(5), padded.position(5));
  }
}

TEST(ExactEvalSampler, OfOneRankIsTheSequentialSampler) {
  const ExactEvalSampler sampler(10);
  EXPECT_EQ(sampler.order(0), SequentialSampler(10).order(0));
  EXPECT_EQ(sampler.order(3), SequentialSampler(10).order(3));
  EXPECT_EQ(sampler.position(4), 4);
}

TEST(ExactEvalSampler, AloneIsForEvaluationOnly) {
  EXPECT_TRUE(ExactEvalSampler(10).evaluation_only()) << "on one rank too";
  EXPECT_FALSE(distributed(10, 2, 0).evaluation_only());
  EXPECT_FALSE(SequentialSampler(10).evaluation_only());
}

TEST(ExactEvalSampler, RefusesARankThatCannotBe) {
  EXPECT_ERROR(exact(10, 2, 2), UsageError, "ExactEvalSampler rank: expected 0 to 1, got 2");
  EXPECT_ERROR(exact(10, 0, 0), UsageError,
               "ExactEvalSampler world_size: expected 1 to 100000, got 0");
}

// Batches of one rank's part: each rank reads batch_size samples.

std::vector<BatchIndices> plans_of(std::shared_ptr<const Sampler> sampler, std::int64_t batch_size,
                                   bool drop_last = false) {
  const BatchSampler batches(std::move(sampler), batch_size, drop_last);
  auto plans = batches.batches_of(0);
  EXPECT_EQ(std::ssize(plans), batches.size());
  return plans;
}

TEST(BatchSamplerOfAPart, CountsTheSamplesOfAllRanks) {
  const auto sampler = std::make_shared<DistributedSampler>(distributed(10, 3, 1));
  const auto plans = plans_of(sampler, 3);
  ASSERT_EQ(plans.size(), 2U);  // 4 samples on each rank
  EXPECT_EQ(plans[0].positions, (Indices{1, 4, 7}));
  EXPECT_EQ(plans[0].global_size, 9);
  EXPECT_EQ(plans[0].world_size, 3);
  EXPECT_EQ(plans[1].positions, (Indices{10}));  // of 10 samples: the first, repeated
  EXPECT_EQ(plans[1].indices, (Indices{RandomSampler(10, 42).order(0)[0]}));
  EXPECT_EQ(plans[1].global_size, 3);
}

TEST(BatchSamplerOfAPart, LeavesShortBatchesOutOnAllRanks) {
  const auto sampler = std::make_shared<DistributedSampler>(distributed(10, 3, 1));
  const auto plans = plans_of(sampler, 3, /*drop_last=*/true);
  ASSERT_EQ(plans.size(), 1U);
  EXPECT_EQ(plans[0].global_size, 9);
}

TEST(BatchSamplerOfAPart, GivesAllRanksTheSameNumberOfStepsInTraining) {
  for (std::int64_t size : {1, 10, 63, 64, 65, 100}) {
    for (const bool drop_last : {false, true}) {
      for (std::int64_t rank = 0; rank < 7; ++rank) {
        const auto of_rank = [&](std::int64_t r) {
          return plans_of(std::make_shared<DistributedSampler>(distributed(size, 7, r)), 4,
                          drop_last);
        };
        const auto plans = of_rank(rank);
        const auto first = of_rank(0);
        ASSERT_EQ(plans.size(), first.size());
        for (std::size_t i = 0; i < plans.size(); ++i) {
          EXPECT_EQ(plans[i].global_size, 7 * std::ssize(plans[i].indices));
        }
      }
    }
  }
}

// With unequal parts, ranks have unequal batches, and some have one batch more.
TEST(BatchSamplerOfAPart, KnowsTheSizeOfABatchWhoseRanksHaveUnequalParts) {
  for (const std::int64_t size : {1, 9, 10, 11, 12, 13}) {
    for (const std::int64_t batch_size : {1, 2, 3, 64}) {
      Indices global_sizes(13, 0);
      std::vector<std::vector<BatchIndices>> ranks;
      for (std::int64_t rank = 0; rank < 4; ++rank) {
        ranks.push_back(
            plans_of(std::make_shared<ExactEvalSampler>(exact(size, 4, rank)), batch_size));
        for (std::size_t k = 0; k < ranks.back().size(); ++k) {
          global_sizes[k] += std::ssize(ranks.back()[k].indices);
        }
      }
      for (const auto& plans : ranks) {
        for (std::size_t k = 0; k < plans.size(); ++k) {
          EXPECT_EQ(plans[k].global_size, global_sizes[k]) << size << " by " << batch_size;
          EXPECT_EQ(plans[k].world_size, 4);
        }
      }
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

TEST(BatchSamplerOfAPart, DoesNotCountTheShortBatchThatAnotherRankLeavesOut) {
  const auto sampler = std::make_shared<Unequal>(3);
  EXPECT_EQ(plans_of(sampler, 2, /*drop_last=*/true).at(1).global_size, 2);
  EXPECT_EQ(plans_of(sampler, 2, /*drop_last=*/false).at(1).global_size, 3);
}

TEST(BatchSamplerOfAPart, CountsNothingOfARankThatIsThroughLongBefore) {
  EXPECT_EQ(plans_of(std::make_shared<Unequal>(1), 2).at(1).global_size, 2);
}

TEST(BatchSamplerOfAPart, RefusesToDropSamplesOfAnEvaluation) {
  EXPECT_ERROR(plans_of(std::make_shared<ExactEvalSampler>(10), 4, /*drop_last=*/true), UsageError,
               "drop_last: an evaluation sampler must not drop samples");
}

// One rank's slice of every batch.

ShardedBatchSampler sharded(std::int64_t size, std::int64_t batch_size, std::int64_t world_size,
                            std::int64_t rank, bool drop_last = false) {
  return ShardedBatchSampler(
      std::make_shared<RandomSampler>(size, 42),
      {.batch_size = batch_size, .drop_last = drop_last, .rank = rank, .world_size = world_size});
}

// The number of samples of batch `k` on each rank.
Indices slice_sizes(std::int64_t size, std::int64_t batch_size, std::int64_t world_size,
                    std::size_t k) {
  Indices sizes;
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    const auto plans = sharded(size, batch_size, world_size, rank).batches_of(0);
    sizes.push_back(std::ssize(plans.at(k).indices));
    EXPECT_EQ(plans.at(k).positions.size(), plans.at(k).indices.size());
  }
  return sizes;
}

TEST(ShardedBatchSampler, GivesTheRemainderToTheFirstRanks) {
  EXPECT_EQ(slice_sizes(64, 64, 7, 0), (Indices{10, 9, 9, 9, 9, 9, 9}));
  EXPECT_EQ(slice_sizes(64, 64, 3, 0), (Indices{22, 21, 21}));
  EXPECT_EQ(slice_sizes(64, 64, 4, 0), (Indices{16, 16, 16, 16}));
}

TEST(ShardedBatchSampler, MayLeaveARankWithoutASample) {
  EXPECT_EQ(slice_sizes(67, 64, 4, 1), (Indices{1, 1, 1, 0}));
  EXPECT_EQ(slice_sizes(5, 2, 4, 0), (Indices{1, 1, 0, 0})) << "batches smaller than the world";
  const auto plan = sharded(67, 64, 4, 3).batches_of(0).at(1);
  EXPECT_EQ(plan.global_size, 3) << "the rank without a sample knows the batch all the same";
  EXPECT_EQ(plan.world_size, 4);
}

// The batches of the run, put together from the slices of all ranks.
std::vector<BatchIndices> joined(std::int64_t size, std::int64_t batch_size,
                                 std::int64_t world_size, bool drop_last, std::int64_t epoch) {
  std::vector<BatchIndices> whole;
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    const auto sampler = sharded(size, batch_size, world_size, rank, drop_last);
    const auto plans = sampler.batches_of(epoch);
    EXPECT_EQ(std::ssize(plans), sampler.size());
    if (rank == 0) whole.resize(plans.size());
    EXPECT_EQ(plans.size(), whole.size()) << "steps of rank " << rank;
    for (std::size_t k = 0; k < whole.size(); ++k) {
      append(whole[k].indices, plans.at(k).indices);
      append(whole[k].positions, plans.at(k).positions);
      EXPECT_EQ(plans.at(k).world_size, world_size);
      whole[k].global_size = plans.at(k).global_size;
    }
  }
  return whole;
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

TEST(ShardedBatchSampler, BatchesOfTheRunAreTheSameForEveryNumberOfRanks) {
  for (const std::int64_t size : {0, 1, 7, 64, 67, 200}) {
    for (const std::int64_t batch_size : {1, 3, 16, 64}) {
      for (const bool drop_last : {false, true}) {
        const BatchSampler one(std::make_shared<RandomSampler>(size, 42), batch_size, drop_last);
        for (std::int64_t world_size = 1; world_size <= 8; ++world_size) {
          SCOPED_TRACE(std::to_string(size) + " samples by " + std::to_string(batch_size) + " on " +
                       std::to_string(world_size) + " ranks");
          expect_same_batches(joined(size, batch_size, world_size, drop_last, 3),
                              one.batches_of(3));
        }
      }
    }
  }
}

TEST(ShardedBatchSampler, IsForEvaluationOnlyIfItsSamplerIs) {
  EXPECT_FALSE(sharded(10, 4, 2, 0).evaluation_only());
  EXPECT_TRUE(ShardedBatchSampler(std::make_shared<ExactEvalSampler>(10)).evaluation_only());
  const auto whole =
      std::make_shared<BatchSampler>(std::make_shared<ExactEvalSampler>(10), 4, false);
  EXPECT_TRUE(ShardedBatchSampler(whole, {.world_size = 2}).evaluation_only());
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
  std::vector<Indices> batches[2];
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    const ShardedBatchSampler sampler(std::make_shared<BackwardsOfEight>(),
                                      {.rank = rank, .world_size = 2});
    EXPECT_EQ(sampler.size(), 3);
    EXPECT_EQ(sampler.whole_size(), 8);
    EXPECT_EQ(sampler.world_size(), 2);
    for (const auto& plan : sampler.batches_of(1)) batches[rank].push_back(plan.indices);
    EXPECT_EQ(sampler.batches_of(1).at(1).global_size, 1);
    EXPECT_EQ(sampler.batches_of(1).at(1).world_size, 2);
  }
  EXPECT_EQ(batches[0], (std::vector<Indices>{{17, 16}, {14}, {13, 12}}));
  EXPECT_EQ(batches[1], (std::vector<Indices>{{15}, {}, {11, 10}}));
  const ShardedBatchSampler last(std::make_shared<BackwardsOfEight>(),
                                 {.rank = 1, .world_size = 2});
  EXPECT_EQ(last.batches_of(0).at(2).positions, (Indices{6, 7}));
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

TEST(ShardedBatchSampler, RefusesOptionsThatItsBatchSamplerDetermines) {
  const auto whole = std::make_shared<BackwardsOfEight>();
  EXPECT_ERROR(
      ShardedBatchSampler(whole, {.batch_size = 4}), UsageError,
      "ShardedBatchSampler: batch_size together with a batch sampler, which determines the "
      "batches; hint: set it in that batch sampler");
  EXPECT_ERROR(ShardedBatchSampler(whole, {.drop_last = true}), UsageError,
               "ShardedBatchSampler: drop_last together with a batch sampler");
}

TEST(ShardedBatchSampler, HasBatchesOf64ByDefault) {
  EXPECT_EQ(ShardedBatchSampler(std::make_shared<SequentialSampler>(100)).batch_size(), 64);
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

// Slices of whole micro-batches.

std::shared_ptr<const BatchSampler> divided(std::int64_t size, std::int64_t batch_size,
                                            std::int64_t world_size, std::int64_t rank,
                                            std::int64_t micro_batch) {
  return divide_batches(size, {.batch_size = batch_size,
                               .rank = rank,
                               .world_size = world_size,
                               .micro_batch = micro_batch});
}

// The number of samples of batch `k` on each rank.
Indices micro_slice_sizes(std::int64_t size, std::int64_t batch_size, std::int64_t world_size,
                          std::int64_t micro_batch, std::size_t k) {
  Indices sizes;
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    const auto plan = divided(size, batch_size, world_size, rank, micro_batch)->batches_of(0).at(k);
    sizes.push_back(std::ssize(plan.indices));
    EXPECT_EQ(plan.positions.size(), plan.indices.size());
    EXPECT_EQ(plan.world_size, world_size);
    EXPECT_EQ(plan.micro_batch, micro_batch);
  }
  return sizes;
}

TEST(MicroBatches, StayWholeAndTheFirstRanksGetOneMore) {
  EXPECT_EQ(micro_slice_sizes(64, 64, 7, 16, 0), (Indices{16, 16, 16, 16, 0, 0, 0}));
  EXPECT_EQ(micro_slice_sizes(64, 64, 3, 16, 0), (Indices{32, 16, 16}));
  EXPECT_EQ(micro_slice_sizes(64, 64, 3, 8, 0), (Indices{24, 24, 16}));
  EXPECT_EQ(micro_slice_sizes(40, 40, 2, 16, 0), (Indices{32, 8}));
  EXPECT_EQ(micro_slice_sizes(40, 40, 2, 64, 0), (Indices{40, 0}));
  EXPECT_EQ(micro_slice_sizes(64, 64, 1, 16, 0), (Indices{64}));
  EXPECT_EQ(micro_slice_sizes(64, 64, 7, 1, 0), (Indices{10, 9, 9, 9, 9, 9, 9}));
}

TEST(MicroBatches, OfAShortLastBatchLeaveRanksWithoutASample) {
  EXPECT_EQ(micro_slice_sizes(67, 64, 2, 16, 1), (Indices{3, 0}));
  EXPECT_EQ(micro_slice_sizes(64 + 33, 64, 2, 16, 1), (Indices{32, 1}));
  EXPECT_EQ(micro_slice_sizes(64 + 33, 64, 4, 16, 1), (Indices{16, 16, 1, 0}));
  const auto plan = divided(67, 64, 2, 1, 16)->batches_of(0).at(1);
  EXPECT_EQ(plan.global_size, 3) << "the rank without a sample knows the batch all the same";
}

TEST(MicroBatches, OfAllRanksAreTheBatchesOfOne) {
  for (const std::int64_t size : {1, 16, 67, 200}) {
    for (const std::int64_t micro_batch : {1, 3, 16, 100}) {
      const BatchSampler one(std::make_shared<RandomSampler>(size, 42), 40, /*drop_last=*/false);
      for (std::int64_t world_size = 1; world_size <= 8; ++world_size) {
        SCOPED_TRACE(testing::Message() << size << " samples, micro-batches of " << micro_batch
                                        << " on " << world_size << " ranks");
        std::vector<BatchIndices> whole(static_cast<std::size_t>(one.size()));
        for (std::int64_t rank = 0; rank < world_size; ++rank) {
          const auto plans = divided(size, 40, world_size, rank, micro_batch)->batches_of(3);
          ASSERT_EQ(plans.size(), whole.size());
          for (std::size_t k = 0; k < whole.size(); ++k) {
            if (!plans[k].indices.empty()) {
              EXPECT_EQ(std::ssize(whole[k].indices) % micro_batch, 0) << "cut before " << rank;
            }
            append(whole[k].indices, plans[k].indices);
            append(whole[k].positions, plans[k].positions);
            whole[k].global_size = plans[k].global_size;
          }
        }
        expect_same_batches(whole, one.batches_of(3));
      }
    }
  }
}

TEST(MicroBatches, CutBatchesThatAreThereAlready) {
  const ShardedBatchSampler sampler(std::make_shared<BackwardsOfEight>(),
                                    {.rank = 1, .world_size = 2, .micro_batch = 3});
  std::vector<Indices> batches;
  for (const auto& plan : sampler.batches_of(0)) batches.push_back(plan.indices);
  EXPECT_EQ(batches, (std::vector<Indices>{{}, {}, {0}}));
}

TEST(MicroBatches, AreRefusedBelowZeroAndPerDevice) {
  EXPECT_ERROR(divided(10, 4, 2, 0, -1), UsageError,
               "ShardedBatchSampler micro_batch: expected 0 to 10000000, got -1");
  EXPECT_ERROR(
      divide_batches(10, {.mode = BatchMode::kPerDevice, .micro_batch = 4}), UsageError,
      "divide_batches: micro-batches together with per-device batches; hint: use the global mode");
  EXPECT_EQ(divided(10, 4, 2, 0, 0)->batches_of(0).at(0).micro_batch, 0);
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

TEST(WholeSize, TellsRepetitionsFromSamples) {
  for (const std::int64_t size : {1, 5, 10, 14, 100}) {
    Indices real;
    for (std::int64_t rank = 0; rank < 7; ++rank) {
      const auto part = std::make_shared<DistributedSampler>(distributed(size, 7, rank));
      const BatchSampler batches(part, 3, /*drop_last=*/false);
      for (const auto& plan : batches.batches_of(0)) {
        for (std::size_t i = 0; i < plan.indices.size(); ++i) {
          if (plan.positions[i] < batches.whole_size()) real.push_back(plan.indices[i]);
        }
      }
    }
    std::sort(real.begin(), real.end());
    EXPECT_EQ(real, SequentialSampler(size).order(0)) << "every sample once";
  }
}

TEST(ShardedBatchSampler, RefusesARankOrABatchThatCannotBe) {
  EXPECT_ERROR(sharded(10, 4, 2, 2), UsageError,
               "ShardedBatchSampler rank: expected 0 to 1, got 2");
  EXPECT_ERROR(sharded(10, 4, 2, -1), UsageError,
               "ShardedBatchSampler rank: expected 0 to 1, got -1");
  EXPECT_ERROR(sharded(10, 4, 0, 0), UsageError,
               "ShardedBatchSampler world_size: expected 1 to 100000, got 0");
  EXPECT_ERROR(sharded(10, 0, 2, 0), UsageError, "batch_size: expected 1 to 10000000, got 0");
}

}  // namespace
}  // namespace ladder
