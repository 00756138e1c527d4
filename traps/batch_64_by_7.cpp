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

// The samples of the first steps.
void record(const char* side, const std::vector<BatchIndices>& plans, int rank) {
  constexpr std::size_t kSteps = 3;
  const torch::nn::Module no_model;
  Recorder recorder(side, no_model, rank, kRanks);
  for (std::size_t step = 0; recorder.records() && step < kSteps; ++step) {
    const auto indices = torch::tensor(plans.at(step).indices);
    recorder.step({.positions = indices, .indices = indices}, torch::zeros({}), no_model);
  }
}

template <typename MakePart>
Division divided(const MakePart& make_part, const char* side) {
  Division division;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const auto plans = make_part(rank)->batches_of(0);
    division.each += fmt::format("{}{}", rank == 0 ? "" : " ", plans.front().indices.size());
    division.step += static_cast<std::int64_t>(plans.front().indices.size());
    division.steps = static_cast<std::int64_t>(plans.size());
    record(side, plans, static_cast<int>(rank));
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
    const auto wrong = divided(
        [](std::int64_t rank) {
          const DistributedSamplerOptions part = {.world_size = kRanks, .rank = rank};
          return std::make_unique<BatchSampler>(std::make_shared<DistributedSampler>(kImages, part),
                                                64 / kRanks, false);
        },
        "mistake");
    const auto right = divided(
        [](std::int64_t rank) {
          const ShardedBatchSamplerOptions part = {
              .batch_size = 64, .rank = rank, .world_size = kRanks};
          return std::make_unique<ShardedBatchSampler>(std::make_shared<RandomSampler>(kImages, 42),
                                                       part);
        },
        "guard");
    require(wrong.step != 64 && right.step == 64,
            "expected 64 images per step with the guard alone");
    show(mistake, wrong);
    show(guard, right);
  });
}

}  // namespace ladder::traps
