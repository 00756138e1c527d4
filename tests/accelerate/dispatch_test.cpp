// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/dispatch.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/core/error.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/data/random_shift.h"
#include "tests/support/accelerators.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace ladder {
namespace {

// What dispatch adds to the options, and what it is compared with.
AcceleratorOptions options_of(LoaderMode mode, bool dispatch) {
  return {.data_loader = {.mode = mode, .dispatch_batches = dispatch}};
}

template <typename Loader>
std::vector<Batch> all_of(const Loader& loader) {
  std::vector<Batch> batches;
  for (const Batch& batch : loader) batches.push_back(batch);
  return batches;
}

void expect_equal(const std::vector<Batch>& got, const std::vector<Batch>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].inputs.size(), expected[i].inputs.size());
    for (const auto& [name, tensor] : expected[i].inputs) {
      EXPECT_EQ(got[i].inputs.at(name).scalar_type(), tensor.scalar_type()) << name;
      EXPECT_TRUE(torch::equal(got[i].inputs.at(name), tensor)) << name << " of batch " << i;
    }
    EXPECT_TRUE(torch::equal(got[i].targets, expected[i].targets)) << i;
    EXPECT_TRUE(torch::equal(got[i].positions, expected[i].positions)) << i;
    EXPECT_EQ(got[i].epoch, expected[i].epoch);
    EXPECT_EQ(got[i].global_size, expected[i].global_size);
    EXPECT_EQ(got[i].world_size, expected[i].world_size);
  }
}

DataLoaderOptions shuffled(int num_workers = 0) {
  return {.batch_size = kBatch, .shuffle = true, .num_workers = num_workers};
}

// In global mode the parts are the same ones; in the other, Accelerate divides the last round
// otherwise when it dispatches, so the comparison is with that division, read on each rank.
std::vector<Batch> read_here(Accelerators& ranks, LoaderMode mode, std::int64_t epoch) {
  const auto accelerator = ranks.make(options_of(LoaderMode::kGlobal, false));
  if (mode == LoaderMode::kGlobal) {
    auto loader = accelerator->prepare(numbered_loader(kSamples, shuffled()));
    loader.set_epoch(epoch);
    return all_of(loader);
  }
  const auto part = std::make_shared<BatchSamplerShard>(
      numbered_loader(kSamples, shuffled()).batch_sampler(),
      BatchSamplerShardOptions{.dispatch_batches = true,
                               .rank = accelerator->process_index(),
                               .world_size = accelerator->num_processes()});
  auto loader = numbered_loader(kSamples, {.batch_sampler = part});
  loader.set_epoch(epoch);
  return all_of(loader);
}

TEST(Dispatch, ReadsOnRank0AndGivesTheSameBatches) {
  run_accelerators(3, [](Accelerators& ranks) {
    for (const auto mode : {LoaderMode::kGlobal, LoaderMode::kPerProcess}) {
      for (const int workers : {0, 2}) {
        const auto accelerator = ranks.make(options_of(mode, true));
        const auto samples = std::make_shared<NumberedSamples>(kSamples);
        auto loader = accelerator->prepare(DataLoader(samples, shuffled(workers)));
        for (const std::int64_t epoch : {0, 1}) {
          loader.set_epoch(epoch);
          expect_equal(all_of(loader), read_here(ranks, mode, epoch));
        }
        const auto rows = accelerator->gather(torch::tensor(samples->rows_read()));
        EXPECT_GE(rows[0].item<std::int64_t>(), 2 * kSamples);
        EXPECT_LT(rows[0].item<std::int64_t>(), 2 * kSamples + 2 * ranks.world_size());
        EXPECT_EQ(rows.sum().item<std::int64_t>(), rows[0].item<std::int64_t>());
      }
    }
  });
}

TEST(Dispatch, HoldsTheDataSetOnRank0Only) {
  run_accelerators(3, [](Accelerators& ranks) {
    const auto accelerator = ranks.make(options_of(LoaderMode::kGlobal, true));
    int made = 0;
    const auto dataset = accelerator->load_dataset([&] {
      ++made;
      return std::make_shared<NumberedSamples>(kSamples);
    });
    const bool is_main = accelerator->is_main_process();
    EXPECT_EQ(made, is_main ? 1 : 0);
    EXPECT_EQ(dataset->size(), kSamples);
    EXPECT_EQ(dataset->description(), "37 samples");
    const std::vector<std::int64_t> first = {0};
    if (is_main) {
      EXPECT_EQ(dataset->get_batch(first).size(), 1);
    } else {
      EXPECT_ERROR(dataset->get_batch(first), UsageError, "only the main process holds");
    }
    auto loader = accelerator->prepare(DataLoader(dataset, shuffled()));
    expect_equal(all_of(loader), read_here(ranks, LoaderMode::kGlobal, 0));
  });
}

// A data set that cannot be read fails before the first batch on all ranks, not after a timeout.
class Unreadable : public NumberedSamples {
 public:
  using NumberedSamples::NumberedSamples;
  Batch get_batch(std::span<const std::int64_t> /*indices*/) const override {
    throw std::runtime_error("cannot read");
  }
};

TEST(LoadDataset, OfEachProcessWithoutDispatchAndAFailureOfRank0FailsOnAll) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto made = std::make_shared<Unreadable>(kSamples);
    EXPECT_EQ(ranks.make()->load_dataset([&] { return made; }), made);
    const auto accelerator = ranks.make(options_of(LoaderMode::kGlobal, true));
    const auto fail = []() -> std::shared_ptr<const Dataset> {
      throw DataError::missing_file("data/x", "download it");
    };
    if (accelerator->is_main_process()) {
      EXPECT_THROW(accelerator->load_dataset(fail), DataError);
    } else {
      EXPECT_ERROR(accelerator->load_dataset(fail), DistributedError,
                   "rank 0 failed in load_dataset");
    }
    const auto loader = accelerator->prepare(DataLoader(made, shuffled()));
    if (accelerator->is_main_process()) {
      EXPECT_ERROR(all_of(loader), std::runtime_error, "cannot read");
    } else {
      EXPECT_ERROR(all_of(loader), DistributedError, "rank 0 failed in the first batch");
    }
  });
}

// Two inputs, of which one holds whole numbers, and targets.
class TwoInputs : public Dataset {
 public:
  std::int64_t size() const override { return kSamples; }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto numbers =
        torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), torch::kInt64);
    return {.inputs = {{"tokens", numbers.unsqueeze(1).repeat({1, 3})},
                       {"image", numbers.to(torch::kFloat32).view({-1, 1, 1, 1})}},
            .targets = numbers.to(torch::kFloat64)};
  }
};

// Augmentation draws by position, so it is the same wherever it is done.
TEST(Dispatch, SendsEveryTensorOfABatchAndAugmentsItAsEachProcessWould) {
  run_accelerators(2, [](Accelerators& ranks) {
    auto shifted = shuffled();
    shifted.transform = std::make_shared<RandomShift>(RandomShiftOptions{.seed = 1});
    for (const auto& loader : {DataLoader(std::make_shared<TwoInputs>(), shuffled()),
                               DataLoader(std::make_shared<RandomImages>(kSamples), shifted)}) {
      const auto batches_with = [&](bool dispatch) {
        const auto accelerator = ranks.make(options_of(LoaderMode::kGlobal, dispatch));
        return all_of(accelerator->prepare(loader));
      };
      expect_equal(batches_with(true), batches_with(false));
    }
  });
}

TEST(Dispatch, BeginsInTheMiddle) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make(options_of(LoaderMode::kGlobal, true));
    const auto loader = accelerator->prepare(numbered_loader(kSamples, shuffled()));
    const auto whole = all_of(loader);
    for (const std::int64_t first : {1, 4, 5}) {
      auto rest = Accelerator::skip_first_batches(loader, first);
      rest.set_epoch(0);
      expect_equal(all_of(rest), std::vector<Batch>(whole.begin() + first, whole.end()));
    }
  });
}

}  // namespace
}  // namespace ladder
