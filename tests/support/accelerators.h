// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdlib.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/accelerate/accelerator_options.h"
#include "ladder/data/data_loader.h"
#include "ladder/data/dataset.h"
#include "ladder/launch/listening_socket.h"
#include "ladder/optim/sgd.h"
#include "mnist/recipe.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training.h"

namespace ladder {

// Makes Accelerators in the ranks of a test: any number, one after another or side by side. All
// ranks make the same ones in the same order.
class Accelerators {
 public:
  Accelerators(const TemporaryFolder& folder, std::vector<ListeningSocket>& stores, int world_size)
      : folder_(folder), stores_(stores), world_size_(world_size) {}

  int world_size() const { return world_size_; }

  std::unique_ptr<Accelerator> make(AcceleratorOptions options = {},
                                    AcceleratorHandlers handlers = {}) {
    options.cpu = options.device == "auto";
    if (options.threads == 0) options.threads = 1;
    options.quiet = true;
    options.process_group.timeout = kTimeout;
    ListeningSocket& store = stores_.at(count_++);
    setenv("MASTER_PORT", std::to_string(store.port()).c_str(), 1);
    if (getenv("RANK") == std::string("0")) {
      setenv("LADDER_LISTEN_FD", std::to_string(store.release()).c_str(), 1);
    }
    auto accelerator = std::make_unique<Accelerator>(std::move(options), std::move(handlers));
    // So that no rank lets go of it again while others are still connecting.
    accelerator->wait_for_everyone();
    return accelerator;
  }

  // One for all ranks.
  const TemporaryFolder& folder() const { return folder_; }

 private:
  const TemporaryFolder& folder_;
  std::vector<ListeningSocket>& stores_;
  int world_size_;
  std::size_t count_ = 0;
};

// Runs `fn` in `world_size` processes and tells how they ended.
// Each Accelerator gets a store of its own, whose port all ranks know. One in a file would take
// five times as long, because its readers wait between two looks.
inline RanksEnd end_of_accelerators(int world_size, const std::function<void(Accelerators&)>& fn) {
  constexpr std::size_t kMaxAccelerators = 24;
  const TemporaryFolder folder;
  std::vector<ListeningSocket> stores(kMaxAccelerators);
  return end_of_ranks(world_size, [&](int /*rank*/) {
    Accelerators accelerators(folder, stores, world_size);
    fn(accelerators);
  });
}

// The same, and fails the test unless all end well.
inline void run_accelerators(int world_size, const std::function<void(Accelerators&)>& fn,
                             std::source_location caller = std::source_location::current()) {
  expect_well(end_of_accelerators(world_size, fn), caller);
}

// Seven batches of five and one of two: neither samples nor batches divide.
constexpr std::int64_t kSamples = 37;
constexpr std::int64_t kBatch = 5;

// Samples that show their number: image i and label i are i. Counts the rows that are read.
class NumberedSamples : public Dataset {
 public:
  explicit NumberedSamples(std::int64_t size) : size_(size) {}

  std::int64_t size() const override { return size_; }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    rows_ += std::ssize(indices);
    const auto numbers =
        torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), torch::kInt64);
    return {.inputs = numbers.to(torch::kFloat32).view({-1, 1, 1, 1}), .targets = numbers};
  }
  std::int64_t rows_read() const { return rows_; }

 private:
  std::int64_t size_;
  mutable std::atomic<std::int64_t> rows_ = 0;
};

inline DataLoader numbered_loader(std::int64_t size, DataLoaderOptions options) {
  return DataLoader(std::make_shared<NumberedSamples>(size), std::move(options));
}

// The images of random_batch(size), to be trained with.
class RandomImages : public Dataset {
 public:
  explicit RandomImages(std::int64_t size) : all_(random_batch(size)) {}

  std::int64_t size() const override { return all_.size(); }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto chosen =
        torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), torch::kInt64);
    return {.inputs = all_.inputs.only().index_select(0, chosen),
            .targets = all_.targets.index_select(0, chosen)};
  }

 private:
  Batch all_;
};

// Shuffled, as for training.
inline DataLoader image_loader(std::int64_t size, std::int64_t batch_size) {
  return DataLoader(std::make_shared<RandomImages>(size),
                    {.batch_size = batch_size, .shuffle = true});
}

// Forward and backward of one batch, as a training loop has them. Returns the loss.
inline torch::Tensor run_backward(Accelerator& accelerator, Model& model, const Recipe& recipe,
                                  const Batch& batch) {
  const auto loss = loss_of(model, recipe, batch);
  accelerator.backward(loss);
  return loss;
}

inline std::shared_ptr<torch::optim::Optimizer> plain_sgd(Model& model, double lr = 0.01) {
  return std::make_shared<SGD>(model.parameters(), SgdOptions{.lr = lr});
}

}  // namespace ladder
