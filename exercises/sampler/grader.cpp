// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <set>
#include <string>
#include <string_view>

#include "exercises/grader/grader.h"
#include "exercises/sampler/sampler.h"
#include "ladder/data/distributed_sampler.h"

namespace ladder::exercises::sampler {
namespace {

using Indices = std::vector<std::int64_t>;
using Parts = std::vector<Indices>;

constexpr std::array<std::int64_t, 6> kSizes = {10'000, 100, 8, 7, 1, 3};
constexpr int kMostRanks = 8;
constexpr std::uint64_t kSeed = 42;

constexpr std::string_view kTooFewSamples =
    "with fewer samples than ranks, a position passes the end more than once: % size";

std::string of(std::int64_t size, int world_size) {
  return fmt::format("{} sample{} on {} rank{}", size, size == 1 ? "" : "s", world_size,
                     world_size == 1 ? "" : "s");
}

Parts training_parts(const Sampler& yours, std::int64_t size, int world_size,
                     std::int64_t epoch = 0, std::uint64_t seed = kSeed) {
  Parts parts;
  for (int rank = 0; rank < world_size; ++rank) {
    try {
      parts.push_back(yours.training_part(size, seed, epoch, rank, world_size));
    } catch (const std::exception& error) {  // such as an index that LibTorch or at() refuses
      if (size >= world_size) throw;
      const std::string_view what = error.what();
      throw Wrong{of(size, world_size) + ": no exception",
                  std::string(what.substr(0, what.find('\n'))), std::string(kTooFewSamples)};
    }
  }
  return parts;
}

// How often each sample is read. An index outside the data set is wrong in any case.
Indices counts(const Parts& parts, std::int64_t size) {
  const auto world_size = static_cast<int>(parts.size());
  const auto where = of(size, world_size);
  Indices count(static_cast<std::size_t>(size));
  for (const auto& part : parts) {
    for (const auto index : part) {
      expect(0 <= index && index < size, fmt::format("{}: indices 0 to {}", where, size - 1),
             fmt::format("index {}", index),
             size < world_size
                 ? std::string(kTooFewSamples)
                 : "positions past the end have to continue at the beginning of the order");
      ++count[static_cast<std::size_t>(index)];
    }
  }
  return count;
}

void equal_sizes(const Sampler& yours, std::int64_t size, int world_size) {
  const auto parts = training_parts(yours, size, world_size);
  const auto expected = (size + world_size - 1) / world_size;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const auto got = static_cast<std::int64_t>(parts[rank].size());
    expect(got == expected, fmt::format("{}: {} per rank", of(size, world_size), expected),
           fmt::format("{} on rank {}", got, rank),
           got == size / world_size && size / world_size * world_size != size &&
                   parts.front().size() == parts.back().size()
               ? "the division of the size by the ranks rounds down"
           : got < expected
               ? "a position past the end of the order is left out; with unequal parts "
                 "a rank waits for another one without end"
               : "every rank reads all samples");
  }
}

void each_sample(const Sampler& yours, std::int64_t size, int world_size) {
  const auto where = of(size, world_size);
  const auto parts = training_parts(yours, size, world_size);
  const auto count = counts(parts, size);
  const auto missing = std::find(count.begin(), count.end(), 0);
  expect(missing == count.end(), where + ": each sample is read",
         fmt::format("sample {} is read by no rank", missing - count.begin()),
         "the rank enters the seed, so each rank divides an order of its own");
  const auto [least, most] = std::minmax_element(count.begin(), count.end());
  expect(*most - *least <= 1, where + ": each sample is read once, a few once more",
         fmt::format("sample {} is read {} times", most - count.begin(), *most),
         size < world_size
             ? std::string(kTooFewSamples)
             : "the padding repeats one sample instead of the first ones of the order");
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const std::set<std::int64_t> different(parts[rank].begin(), parts[rank].end());
    expect(different.size() == parts[rank].size(), where + ": no rank reads a sample twice",
           fmt::format("{} different samples of {} on rank {}", different.size(),
                       parts[rank].size(), rank),
           "the padding repeats samples of the same part instead of the first ones of the order");
  }
}

void repeatable(const Sampler& yours) {
  const auto first = training_parts(yours, 1'000, 3);
  expect(first == training_parts(yours, 1'000, 3), "equal seed and epoch give equal parts",
         "different parts in two calls",
         "the order comes from the global generator, which each call advances; a rank or a "
         "resumed run would have another order");
}

std::int64_t equal_positions(const Parts& one, const Parts& other) {
  std::int64_t equal = 0;
  for (std::size_t rank = 0; rank < one.size(); ++rank) {
    for (std::size_t i = 0; i < one[rank].size(); ++i) equal += one[rank][i] == other[rank][i];
  }
  return equal;
}

void new_orders(const Sampler& yours) {
  constexpr std::int64_t kSize = 1'000;
  auto first = training_parts(yours, kSize, 2);
  const auto ascending = std::is_sorted(first[0].begin(), first[0].end());
  expect(!ascending, "a random order", "ascending samples on rank 0",
         "the samples are not shuffled");
  const auto epochs = equal_positions(first, training_parts(yours, kSize, 2, /*epoch=*/1));
  expect(epochs < kSize / 10, "different orders of epochs 0 and 1",
         fmt::format("{} of {} samples at equal positions", epochs, kSize),
         "the epoch does not enter the seed of the generator");
  const auto seeds = equal_positions(first, training_parts(yours, kSize, 2, 0, kSeed + 1'000));
  expect(seeds < kSize / 10, "different orders of two seeds",
         fmt::format("{} of {} samples at equal positions", seeds, kSize), "the seed is not used");
}

void exact_evaluation(const Sampler& yours, std::int64_t size, int world_size) {
  const auto where = of(size, world_size);
  Parts parts;
  for (int rank = 0; rank < world_size; ++rank) {
    parts.push_back(yours.evaluation_part(size, rank, world_size));
  }
  const auto count = counts(parts, size);
  for (std::int64_t i = 0; i < size; ++i) {
    const auto times = count[static_cast<std::size_t>(i)];
    expect(times == 1, where + ": each sample is counted once",
           fmt::format("sample {} is counted {} times", i, times),
           times == 0            ? "the last samples are dropped where the ranks do not divide them"
           : times == world_size ? "every rank reads all samples"
                                 : "the evaluation is padded like a training epoch");
  }
  const auto by_size = [](const Indices& a, const Indices& b) { return a.size() < b.size(); };
  const auto [least, most] = std::minmax_element(parts.begin(), parts.end(), by_size);
  expect(most->size() - least->size() <= 1, where + ": parts that differ by one at most",
         fmt::format("parts of {} and {}", least->size(), most->size()),
         "chunks of a rounded size leave the last rank more or less than the others: take each "
         "world_size-th sample");
}

// Runs a check for all sizes and worlds.
void for_all(const Sampler& yours, void (*check)(const Sampler&, std::int64_t, int)) {
  for (const auto size : kSizes) {
    for (int world_size = 1; world_size <= kMostRanks; ++world_size) {
      check(yours, size, world_size);
    }
  }
}

void grade(Grader& grader, const Sampler& yours) {
  using Group = const ProcessGroup&;
  grader.property("training: parts of equal size on 1 to 8 ranks", 1,
                  [&](Group) { for_all(yours, equal_sizes); });
  grader.property("training: equal arguments give equal parts", 1,
                  [&](Group) { repeatable(yours); });
  grader.property("training: each sample is read", 1, [&](Group) { for_all(yours, each_sample); });
  grader.property("training: each epoch and each seed has an order of its own", 1,
                  [&](Group) { new_orders(yours); });
  grader.property("evaluation: each sample once on 1 to 8 ranks", 1,
                  [&](Group) { for_all(yours, exact_evaluation); });
  grader.compare_times(
      1, "part of one of 8 ranks, 60,000 samples",
      [&](Group) { yours.training_part(60'000, kSeed, 0, 0, 8); },
      [](Group) {
        DistributedSampler(60'000, {.world_size = 8, .rank = 0, .seed = kSeed}).order(0);
      });
}

const Graded<Sampler> graded("sampler", grade);

}  // namespace
}  // namespace ladder::exercises::sampler
