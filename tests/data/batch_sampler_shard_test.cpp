// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/distributed_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/io/sha256.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace ladder {
namespace {

using Indices = std::vector<std::int64_t>;
using Table = std::vector<std::vector<Indices>>;       // [rank][batch][sample]
using Plans = std::vector<std::vector<BatchIndices>>;  // [rank][batch]

const nlohmann::json& golden() { return golden_json("accelerate_shards.json"); }

BatchSamplerShardOptions options_of(const nlohmann::json& wanted, std::int64_t rank) {
  return {.split_batches = wanted.at("split_batches"),
          .even_batches = wanted.at("even_batches"),
          .dispatch_batches = wanted.at("dispatch_batches"),
          .rank = rank,
          .world_size = wanted.at("world_size")};
}

std::shared_ptr<const BatchSampler> whole_of(const nlohmann::json& wanted,
                                             std::shared_ptr<const Sampler> order) {
  return std::make_shared<BatchSampler>(std::move(order), wanted.at("batch_size"),
                                        wanted.at("drop_last"));
}

Plans plans_of(const nlohmann::json& wanted, const std::shared_ptr<const Sampler>& order,
               std::int64_t epoch = 0) {
  Plans ranks;
  for (std::int64_t rank = 0; rank < wanted.at("world_size"); ++rank) {
    const BatchSamplerShard sampler(whole_of(wanted, order), options_of(wanted, rank));
    ranks.push_back(sampler.batches_of(epoch));
    EXPECT_EQ(std::ssize(ranks.back()), sampler.size()) << "rank " << rank;
    EXPECT_EQ(sampler.whole_size(), order->size());
  }
  return ranks;
}

Table table_of(const Plans& ranks) {
  Table table(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& plan : ranks[rank]) table[rank].push_back(plan.indices);
  }
  return table;
}

// Where parts are uneven, Accelerate has no batch in the place of an empty one.
Table as_accelerate_has_it(Table table, const nlohmann::json& wanted) {
  if (wanted.at("even_batches") || wanted.at("dispatch_batches")) return table;
  for (auto& batches : table) {
    if (!batches.empty() && batches.back().empty()) batches.pop_back();
  }
  return table;
}

std::string digest_of(const Table& table) {
  const std::string text = nlohmann::json(table).dump();
  return sha256_hex(std::as_bytes(std::span(text))).substr(0, 8);
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::string name_of(nlohmann::json wanted) {
  for (const char* long_one : {"table", "digests", "remainders"}) wanted.erase(long_one);
  return wanted.dump();
}

// Calls `check(wanted, n, i)` for each case and number of samples that was recorded as the i-th.
template <typename Check>
void for_each_table(const Check& check) {
  for (const auto& wanted : golden().at("cases")) {
    if (!wanted.contains("digests")) continue;
    const auto tables = words(wanted.at("digests")).size();
    ASSERT_EQ(tables, 40U);
    for (std::size_t i = 0; i < tables; ++i) {
      const std::int64_t n = golden().at("first_n").get<std::int64_t>() + std::int64_t(i);
      SCOPED_TRACE(name_of(wanted) + " n " + std::to_string(n));
      check(wanted, n, i);
    }
  }
}

// Samples of the last round that are no repetitions; nothing without a round.
std::optional<std::int64_t> real_samples_at_the_end(const Plans& ranks, std::int64_t n) {
  std::size_t rounds = 0;
  for (const auto& plans : ranks) rounds = std::max(rounds, plans.size());
  if (rounds == 0) return std::nullopt;
  std::int64_t count = 0;
  for (const auto& plans : ranks) {
    if (plans.size() < rounds) continue;
    count += std::ranges::count_if(plans.back().positions, [&](auto k) { return k < n; });
  }
  return count;
}

// Accelerate's `remainder` is 0 or -1 where nothing is repeated.
TEST(BatchSamplerShard, GivesEachRankAcceleratesIndicesAndRemainder) {
  int tables = 0;
  for_each_table([&](const nlohmann::json& wanted, std::int64_t n, std::size_t i) {
    const auto plans = plans_of(wanted, std::make_shared<SequentialSampler>(n));
    const auto table = as_accelerate_has_it(table_of(plans), wanted);
    if (n == golden().at("shown_n")) {
      EXPECT_EQ(table, wanted.at("table").get<Table>());
    }
    EXPECT_EQ(digest_of(table), words(wanted.at("digests")).at(i)) << nlohmann::json(table);
    if (const auto real = real_samples_at_the_end(plans, n)) {
      const std::int64_t remainder = std::stoll(words(wanted.at("remainders")).at(i));
      EXPECT_EQ(*real, remainder > 0 ? remainder : plans[0].back().global_size);
    }
    ++tables;
  });
  EXPECT_GE(tables, 9000);
}

TEST(BatchSamplerShard, GivesAcceleratesIndicesOfAShuffledEpoch) {
  int cases = 0;
  for (const auto& wanted : golden().at("cases")) {
    if (!wanted.contains("shuffle")) continue;
    SCOPED_TRACE(name_of(wanted));
    const auto order = std::make_shared<RandomSampler>(wanted.at("n"), wanted.at("seed"));
    const auto plans = plans_of(wanted, order, wanted.at("epoch"));
    EXPECT_EQ(as_accelerate_has_it(table_of(plans), wanted), wanted.at("table").get<Table>());
    ++cases;
  }
  EXPECT_GE(cases, 40);
}

TEST(BatchSamplerShard, DispatchesAlikeWhateverEvenBatchesSays) {
  int tables = 0;
  for_each_table([&](const nlohmann::json& wanted, std::int64_t n, std::size_t i) {
    if (!wanted.at("dispatch_batches")) return;
    auto uneven = wanted;
    uneven["even_batches"] = false;
    const auto order = std::make_shared<SequentialSampler>(n);
    EXPECT_EQ(digest_of(table_of(plans_of(uneven, order))), words(wanted.at("digests")).at(i));
    const BatchSamplerShard sampler(whole_of(uneven, order), options_of(uneven, 0));
    EXPECT_FALSE(sampler.evaluation_only());
    ++tables;
  });
  EXPECT_GE(tables, 2000);
}

TEST(BatchSamplerShard, RefusesWhatAccelerateRefuses) {
  int refused = 0;
  for (const auto& wanted : golden().at("cases")) {
    if (!wanted.contains("refused")) continue;
    SCOPED_TRACE(name_of(wanted));
    EXPECT_ERROR(plans_of(wanted, std::make_shared<SequentialSampler>(10)), UsageError,
                 "BatchSamplerShard: split_batches cannot cut");
    ++refused;
  }
  EXPECT_GE(refused, 40);
}

// Every position of every rank with its index; no position twice.
std::map<std::int64_t, std::int64_t> places_of(const Plans& ranks) {
  std::map<std::int64_t, std::int64_t> places;
  for (const auto& plans : ranks) {
    for (const auto& plan : plans) {
      EXPECT_EQ(plan.positions.size(), plan.indices.size());
      for (std::size_t i = 0; i < plan.indices.size(); ++i) {
        EXPECT_TRUE(places.emplace(plan.positions[i], plan.indices[i]).second)
            << "position " << plan.positions[i] << " twice";
      }
    }
  }
  return places;
}

TEST(BatchSamplerShard, PositionsArePlacesInTheWrappedOrder) {
  for_each_table([](const nlohmann::json& wanted, std::int64_t n, std::size_t /*i*/) {
    const auto sampler = std::make_shared<RandomSampler>(n, 42);
    const Indices order = sampler->order(1);
    const auto places = places_of(plans_of(wanted, sampler, 1));
    std::int64_t next = 0;
    for (const auto& [position, index] : places) {
      EXPECT_EQ(position, next++) << "without a gap";
      EXPECT_EQ(index, order[static_cast<std::size_t>(position % n)]);
    }
    if (!wanted.at("drop_last")) {
      EXPECT_GE(next, n) << "every sample";
    }
    if (!wanted.at("even_batches")) {
      EXPECT_LE(next, n) << "and none twice";
    }
  });
}

TEST(BatchSamplerShard, GivesAllRanksAsManyBatchesAndKnowsTheSizeOfARound) {
  int empty = 0;
  for_each_table([&](const nlohmann::json& wanted, std::int64_t n, std::size_t /*i*/) {
    const auto order = std::make_shared<SequentialSampler>(n);
    const auto ranks = plans_of(wanted, order);
    std::vector<std::int64_t> sums(ranks.front().size());
    for (const auto& plans : ranks) {
      ASSERT_EQ(plans.size(), sums.size());
      for (std::size_t k = 0; k < plans.size(); ++k) sums[k] += std::ssize(plans[k].indices);
    }
    for (const auto& plans : ranks) {
      for (std::size_t k = 0; k < plans.size(); ++k) {
        EXPECT_EQ(plans[k].global_size, sums[k]) << "round " << k;
        EXPECT_EQ(plans[k].world_size, std::ssize(ranks));
      }
    }
    if (!ranks.back().empty() && ranks.back().back().indices.empty()) ++empty;
    EXPECT_FALSE(
        BatchSamplerShard(whole_of(wanted, order), options_of(wanted, 0)).evaluation_only());
  });
  EXPECT_GE(empty, 500) << "so that the others need not wait";
}

std::shared_ptr<const BatchSampler> batches_of(std::int64_t size, std::int64_t batch_size) {
  return std::make_shared<BatchSampler>(std::make_shared<SequentialSampler>(size), batch_size,
                                        /*drop_last=*/false);
}

TEST(BatchSamplerShard, IsForEvaluationOnlyIfTheOtherSamplerIsAlsoWhereARankHasNoSample) {
  const auto whole =
      std::make_shared<BatchSampler>(std::make_shared<ExactEvalSampler>(8), 4, false);
  EXPECT_TRUE(BatchSamplerShard(whole, {.world_size = 2}).evaluation_only());
  const auto one = std::make_shared<BatchSampler>(std::make_shared<SequentialSampler>(1), 4, false);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const BatchSamplerShard sampler(one, {.dispatch_batches = true, .rank = rank, .world_size = 4});
    ASSERT_EQ(sampler.batches_of(0).size(), 1U) << "a step for every rank";
    EXPECT_EQ(sampler.batches_of(0)[0].global_size, 2);
    EXPECT_EQ(std::ssize(sampler.batches_of(0)[0].indices), rank < 2 ? 1 : 0);
    EXPECT_FALSE(sampler.evaluation_only());
  }
}

// Batches of one's own: the samples backwards, cut where `sizes` says.
class Backwards : public BatchSampler {
 public:
  Backwards(std::int64_t batch_size, Indices sizes, bool drop_last = false)
      : BatchSampler(std::make_shared<SequentialSampler>(10), batch_size, drop_last),
        sizes_(std::move(sizes)) {}

  std::int64_t size() const override { return std::ssize(sizes_); }
  std::vector<BatchIndices> batches_of(std::int64_t /*epoch*/) const override {
    std::vector<BatchIndices> plans;
    std::int64_t position = 0;
    for (const std::int64_t size : sizes_) {
      BatchIndices plan{.global_size = size};
      for (std::int64_t end = position + size; position < end; ++position) {
        plan.indices.push_back(9 - position);
        plan.positions.push_back(position);
      }
      plans.push_back(plan);
    }
    return plans;
  }

 private:
  Indices sizes_;
};

std::vector<Indices> of_first_rank(std::shared_ptr<const BatchSampler> whole,
                                   BatchSamplerShardOptions options) {
  options.world_size = 2;
  std::vector<Indices> batches;
  for (const auto& plan : BatchSamplerShard(std::move(whole), options).batches_of(0)) {
    batches.push_back(plan.indices);
  }
  return batches;
}

TEST(BatchSamplerShard, DividesBatchesOfOnesOwn) {
  const auto whole = std::make_shared<Backwards>(4, Indices{4, 4, 2});
  EXPECT_EQ(of_first_rank(whole, {}), (std::vector<Indices>{{9, 8, 7, 6}, {1, 0, 9, 8}}));
  EXPECT_EQ(of_first_rank(whole, {.split_batches = true}),
            (std::vector<Indices>{{9, 8}, {5, 4}, {1, 0}}));
  EXPECT_EQ(of_first_rank(whole, {.dispatch_batches = true}),
            (std::vector<Indices>{{9, 8, 7, 6}, {1}}));
  EXPECT_EQ(of_first_rank(whole, {.even_batches = false}),
            (std::vector<Indices>{{9, 8, 7, 6}, {1, 0}}));
}

TEST(BatchSamplerShard, RefusesBatchesWithoutEqualParts) {
  const auto parts = [](const Indices& sizes, bool drop_last = false) {
    of_first_rank(std::make_shared<Backwards>(4, sizes, drop_last), {});
  };
  EXPECT_ERROR(parts({4, 3, 3}), UsageError,
               "BatchSamplerShard batch 1: expected 4 samples, got 3; hint: loader mode global");
  EXPECT_ERROR(parts({4, 4, 2}, /*drop_last=*/true), UsageError, "batch 2: expected 4 samples");
  EXPECT_ERROR(parts({5, 5}), UsageError, "batch 0: expected 4 samples, got 5");
  EXPECT_ERROR(parts({4, 5}), UsageError, "batch 1: expected 4 samples, got 5");
  EXPECT_ERROR(parts({4, 0}), UsageError, "batch 1: expected 4 samples, got 0");
  BatchSamplerShardOptions split{.split_batches = true, .world_size = 3};
  EXPECT_ERROR(BatchSamplerShard(batches_of(100, 64), split), UsageError,
               "BatchSamplerShard: split_batches cannot cut 64 samples into 3 equal parts; hint: "
               "choose a batch size that 3 divides");
  split.dispatch_batches = true;
  EXPECT_ERROR(BatchSamplerShard(batches_of(100, 1), split), UsageError,
               "cannot cut 1 samples into 3 equal parts");
}

TEST(BatchSamplerShard, RefusesToDivideWhatIsDividedAlreadyAndARankThatCannotBe) {
  const auto part =
      std::make_shared<DistributedSampler>(10, DistributedSamplerOptions{.world_size = 2});
  const auto whole = batches_of(10, 4);
  const BatchSamplerShardOptions two{.world_size = 2};
  const std::vector<std::shared_ptr<const BatchSampler>> parts = {
      std::make_shared<BatchSampler>(part, 4, false),
      std::make_shared<BatchSamplerShard>(whole, two),
      std::make_shared<ShardedBatchSampler>(whole, ShardedBatchSamplerOptions{.world_size = 2})};
  for (const auto& each : parts) {
    EXPECT_ERROR(BatchSamplerShard(each, two), UsageError,
                 "BatchSamplerShard: its sampler gives one rank's part, and it would divide that");
  }
  EXPECT_ERROR(BatchSamplerShard(whole, {.rank = 2, .world_size = 2}), UsageError,
               "BatchSamplerShard rank: expected 0 to 1, got 2");
  EXPECT_ERROR(BatchSamplerShard(whole, {.rank = -1, .world_size = 2}), UsageError,
               "BatchSamplerShard rank: expected 0 to 1, got -1");
  EXPECT_ERROR(BatchSamplerShard(whole, {.world_size = 0}), UsageError,
               "BatchSamplerShard world_size: expected 1 to 100000, got 0");
}

}  // namespace
}  // namespace ladder
