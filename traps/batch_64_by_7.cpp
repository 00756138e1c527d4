// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <memory>
#include <string>

#include "ladder/data/distributed_sampler.h"
#include "ladder/data/sampler.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

constexpr std::int64_t kImages = 60'000;
constexpr std::int64_t kRanks = 7;

struct Division {
  std::string each;       // images per step of each rank
  std::int64_t step = 0;  // of all ranks
  std::int64_t steps = 0;
};

template <typename MakePart>
Division divided(const MakePart& make_part) {
  Division division;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const auto plans = make_part(rank)->batches_of(0);
    division.each += fmt::format("{}{}", rank == 0 ? "" : " ", plans.front().indices.size());
    division.step += static_cast<std::int64_t>(plans.front().indices.size());
    division.steps = static_cast<std::int64_t>(plans.size());
  }
  return division;
}

void show(void (*side)(const std::string&, const std::string&), const Division& division) {
  side("images per rank", division.each);
  side("images per step", std::to_string(division.step));
  side("steps per epoch", std::to_string(division.steps));
}

}  // namespace

void batch_64_by_7() {
  on_processes(1, [] {
    // Python: DataLoader(..., batch_size=int(64 / world_size), sampler=DistributedSampler(...))
    const auto wrong = divided([](std::int64_t rank) {
      const DistributedSamplerOptions part = {.world_size = kRanks, .rank = rank};
      return std::make_unique<BatchSampler>(std::make_shared<DistributedSampler>(kImages, part),
                                            64 / kRanks, false);
    });
    const auto right = divided([](std::int64_t rank) {
      const ShardedBatchSamplerOptions part = {
          .batch_size = 64, .rank = rank, .world_size = kRanks};
      return std::make_unique<ShardedBatchSampler>(std::make_shared<RandomSampler>(kImages, 42),
                                                   part);
    });
    require(wrong.step != 64 && right.step == 64,
            "expected 64 images per step with the guard alone");
    show(mistake, wrong);
    show(guard, right);
  });
}

}  // namespace ladder::traps
