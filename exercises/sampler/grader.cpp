// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "exercises/grader/grader.h"
#include "exercises/sampler/sampler.h"
#include "ladder/data/distributed_sampler.h"

namespace ladder::exercises::sampler {
namespace {

using Indices = std::vector<std::int64_t>;
using Parts = std::vector<Indices>;

constexpr std::array<std::int64_t, 6> kSizes = {10'000, 100, 8, 7, 1, 3};
constexpr int kMaxRanks = 8;
constexpr std::uint64_t kSeed = 42;

// `size` in tests, another one in each check.
std::int64_t own_size(std::int64_t size) {
  return size + static_cast<std::int64_t>(fresh_seed() % 100);
}

constexpr std::string_view kTooFewSamples =
    "with fewer samples than ranks, a position passes the end more than once: % size";

constexpr const char* kOutside = "a position past the end of the order: continue at the beginning";

std::string of(std::int64_t size, int world_size) {
  return fmt::format("{} sample{} on {} rank{}", size, size == 1 ? "" : "s", world_size,
                     world_size == 1 ? "" : "s");
}

Parts training_parts(const Sampler& yours, std::int64_t size, int world_size,
                     std::int64_t epoch = 0, std::uint64_t seed = kSeed) {
  Parts parts;
  for (int rank = 0; rank < world_size; ++rank) {
    running(fmt::format("training_part({}, {}, {}, {}, {})", size, seed, epoch, rank, world_size),
            kOutside);
    try {
      parts.push_back(yours.training_part(size, seed, epoch, rank, world_size));
    } catch (const std::exception& error) {  // such as an index that LibTorch or at() refuses
      if (size >= world_size) throw;
      const std::string_view what = error.what();
      throw Wrong{of(size, world_size) + ": no exception",
                  std::string(what.substr(0, what.find('\n'))), std::string(kTooFewSamples)};
    }
    running("");
  }
  return parts;
}

// The samples of all ranks in ascending order.
torch::Tensor sorted(const Parts& parts) {
  Indices all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  std::ranges::sort(all);
  return torch::tensor(all);
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
    result(torch::tensor(got));
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
    result(torch::tensor(std::ssize(different)));
  }
}

void repeatable(const Sampler& yours) {
  const auto first = training_parts(yours, 1'000, 3);
  expect(first == training_parts(yours, 1'000, 3), "equal seed and epoch give equal parts",
         "different parts in two calls",
         "the order comes from the global generator, which each call advances; a rank or a "
         "resumed run would have another order");
  for (const auto& part : training_parts(yours, 9, 3)) {  // 3 ranks divide 9 samples
    for (const auto index : part) {
      expect(index < 9, "9 samples after a call for 1000: indices 0 to 8",
             fmt::format("index {}", index),
             "the order of an earlier call is used again, as of a `static` variable");
    }
  }
  torch::manual_seed(kSeed);
  const auto drawn = torch::rand({4});
  torch::manual_seed(kSeed);
  training_parts(yours, 1'000, 3);
  expect(torch::equal(torch::rand({4}), drawn),
         "torch::rand() draws the same with a call before it", "other numbers",
         "the global generator of the program is changed, from which dropout draws; "
         "createCPUGenerator makes another one");
  result(sorted(training_parts(yours, 600 + own_size(100), 1)));
}

std::int64_t equal_positions(const Parts& one, const Parts& other) {
  std::int64_t equal = 0;
  for (std::size_t rank = 0; rank < one.size(); ++rank) {
    for (std::size_t i = 0; i < one[rank].size(); ++i) equal += one[rank][i] == other[rank][i];
  }
  return equal;
}

// How many samples of rank 0 are the same.
std::int64_t equal_samples(Parts one, Parts other) {
  Indices both;
  std::ranges::sort(one[0]);
  std::ranges::sort(other[0]);
  std::ranges::set_intersection(one[0], other[0], std::back_inserter(both));
  return std::ssize(both);
}

// How many samples follow the same sample in both orders.
std::int64_t equal_neighbours(const Indices& one, const Indices& other) {
  std::set<std::pair<std::int64_t, std::int64_t>> pairs;
  for (std::size_t i = 1; i < one.size(); ++i) pairs.emplace(one[i - 1], one[i]);
  std::int64_t equal = 0;
  for (std::size_t i = 1; i < other.size(); ++i) equal += pairs.contains({other[i - 1], other[i]});
  return equal;
}

void new_orders(const Sampler& yours) {
  constexpr std::int64_t kSize = 1'000;
  auto first = training_parts(yours, kSize, 2);
  const auto ascending = std::is_sorted(first[0].begin(), first[0].end());
  expect(!ascending, "a random order", "ascending samples on rank 0",
         "the samples are not shuffled");
  const auto next = training_parts(yours, kSize, 2, /*epoch=*/1);
  const auto epochs = equal_positions(first, next);
  expect(epochs < kSize / 10, "different orders of epochs 0 and 1",
         fmt::format("{} of {} samples at equal positions", epochs, kSize),
         "the epoch does not enter the seed of the generator");
  const auto same = equal_samples(first, next);  // about kSize / 4
  expect(same < kSize * 2 / 5, "rank 0 of 2 reads other samples in epoch 1 than in epoch 0",
         fmt::format("{} of its {} samples are the same", same, first[0].size()),
         "a rank reads the same samples in each epoch: the order of all samples has to change, not "
         "that of a part");
  const auto neighbours =
      equal_neighbours(training_parts(yours, kSize, 1)[0], training_parts(yours, kSize, 1, 1)[0]);
  expect(neighbours < kSize / 10, "different neighbours in the orders of epochs 0 and 1",
         fmt::format("{} of {} samples follow the same one", neighbours, kSize),
         "the order is only rotated from epoch to epoch: the epoch has to enter the seed");
  const auto of_seed_0 =
      equal_positions(training_parts(yours, kSize, 2, 0, 0), training_parts(yours, kSize, 2, 1, 0));
  expect(of_seed_0 < kSize / 10, "seed 0: different orders of epochs 0 and 1",
         fmt::format("{} of {} samples at equal positions", of_seed_0, kSize),
         "with seed 0, a product of seed and epoch is 0 in each epoch: add them");
  const auto seeds = equal_positions(first, training_parts(yours, kSize, 2, 0, kSeed + 1'000));
  expect(seeds < kSize / 10, "different orders of two seeds",
         fmt::format("{} of {} samples at equal positions", seeds, kSize), "the seed is not used");
  result(sorted(training_parts(yours, own_size(kSize), 1, /*epoch=*/1)));
}

void exact_evaluation(const Sampler& yours, std::int64_t size, int world_size) {
  const auto where = of(size, world_size);
  Parts parts;
  for (int rank = 0; rank < world_size; ++rank) {
    running(fmt::format("evaluation_part({}, {}, {})", size, rank, world_size), kOutside);
    parts.push_back(yours.evaluation_part(size, rank, world_size));
  }
  running("");
  const auto count = counts(parts, size);
  for (std::int64_t i = 0; i < size; ++i) {
    const auto times = count[static_cast<std::size_t>(i)];
    expect(times == 1, where + ": each sample is counted once",
           fmt::format("sample {} is counted {} times", i, times),
           times == 0            ? "the last samples are dropped where the ranks do not divide them"
           : times == world_size ? "every rank reads all samples"
                                 : "the evaluation is padded like a training epoch");
  }
  result(sorted(parts));
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
    for (int world_size = 1; world_size <= kMaxRanks; ++world_size) {
      check(yours, size == kSizes.front() ? own_size(size) : size, world_size);
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
