// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/data_loader.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "ladder/core/error.h"

namespace ladder {

namespace {

constexpr std::size_t kBatchesAheadPerWorker = 2;
constexpr std::int64_t kDefaultBatchSize = 64;

// Makes a batch from its plan; independent of the loader's lifetime.
struct BatchMaker {
  std::shared_ptr<const Dataset> dataset;
  std::shared_ptr<const Transform> transform;
  bool pin_memory;
  std::int64_t epoch;

  Batch make(const BatchIndices& plan) const {
    Batch batch = dataset->get_batch(plan.indices);
    if (transform != nullptr) transform->apply(batch.inputs, plan.indices, epoch);
    batch.positions = torch::tensor(plan.positions, torch::kInt64);
    batch.indices = torch::tensor(plan.indices, torch::kInt64);
    batch.epoch = epoch;
    batch.global_size = plan.global_size;
    batch.world_size = plan.world_size;
    if (pin_memory && torch::hasCUDA() && batch.inputs.device().is_cpu()) {
      const auto pinned = [](const torch::Tensor& tensor) { return tensor.pin_memory(); };
      batch.inputs = batch.inputs.map(pinned);
      if (batch.targets.defined()) batch.targets = pinned(batch.targets);
    }
    return batch;
  }
};

class SerialSource : public BatchSource {
 public:
  SerialSource(BatchMaker maker, std::vector<BatchIndices> plans)
      : maker_(std::move(maker)), plans_(std::move(plans)) {}

  std::optional<Batch> next() override {
    if (done_ == plans_.size()) return std::nullopt;
    return maker_.make(plans_[done_++]);
  }

 private:
  BatchMaker maker_;
  std::vector<BatchIndices> plans_;
  std::size_t done_ = 0;
};

// Workers take the next plan each and leave the batch in a ring of slots; the loop takes
// the slots in order. A worker waits while the ring is full, the loop while its slot is empty.
class PrefetchingSource : public BatchSource {
 public:
  PrefetchingSource(BatchMaker maker, std::vector<BatchIndices> plans, std::size_t workers)
      : maker_(std::move(maker)), plans_(std::move(plans)) {
    const std::size_t most = std::max<std::size_t>(1, plans_.size());
    slots_.resize(std::min(workers * kBatchesAheadPerWorker, most));
    for (std::size_t i = 0; i < std::min(workers, plans_.size()); ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  }

  std::optional<Batch> next() override {
    if (taken_ == plans_.size()) return std::nullopt;
    std::unique_lock lock(mutex_);
    auto& slot = slots_[taken_ % slots_.size()];
    changed_.wait(lock, [&] { return !std::holds_alternative<std::monostate>(slot); });
    Slot result = std::exchange(slot, std::monostate{});
    ++taken_;
    changed_.notify_all();
    if (auto* failure = std::get_if<std::exception_ptr>(&result)) std::rethrow_exception(*failure);
    return std::get<Batch>(std::move(result));
  }

 private:
  using Slot = std::variant<std::monostate, Batch, std::exception_ptr>;

  void work(const std::stop_token& stop) {
    while (const auto index = next_plan(stop)) put(*index, make(plans_[*index]));
  }

  // The next plan that no worker has, once there is room for its batch; nothing at the end.
  std::optional<std::size_t> next_plan(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const bool go_on = changed_.wait(
        lock, stop, [&] { return claimed_ == plans_.size() || claimed_ < taken_ + slots_.size(); });
    if (!go_on || claimed_ == plans_.size()) return std::nullopt;
    return claimed_++;
  }

  Slot make(const BatchIndices& plan) const {
    try {
      return maker_.make(plan);
    } catch (...) {
      return std::current_exception();
    }
  }

  void put(std::size_t index, Slot slot) {
    const std::lock_guard lock(mutex_);
    slots_[index % slots_.size()] = std::move(slot);
    changed_.notify_all();
  }

  BatchMaker maker_;
  std::vector<BatchIndices> plans_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Slot> slots_;
  std::size_t claimed_ = 0;            // plans given to workers
  std::size_t taken_ = 0;              // batches given to the loop
  std::vector<std::jthread> threads_;  // last: stopped and joined before what they use goes away
};

std::shared_ptr<const Sampler> choose_sampler(const Dataset& dataset,
                                              const DataLoaderOptions& options) {
  if (options.sampler != nullptr) return options.sampler;
  if (options.shuffle) return std::make_shared<RandomSampler>(dataset.size(), options.seed);
  return std::make_shared<SequentialSampler>(dataset.size());
}

std::shared_ptr<const BatchSampler> choose_batches(const Dataset& dataset,
                                                   const DataLoaderOptions& options) {
  if (options.batch_sampler != nullptr) return options.batch_sampler;
  return std::make_shared<BatchSampler>(choose_sampler(dataset, options),
                                        options.batch_size.value_or(kDefaultBatchSize),
                                        options.drop_last);
}

// The first option given that a batch sampler has already decided; nullptr if there is none.
const char* decided_twice(const DataLoaderOptions& options) {
  if (options.batch_size.has_value()) return "batch_size";
  if (options.shuffle) return "shuffle";
  if (options.sampler != nullptr) return "a sampler";
  if (options.drop_last) return "drop_last";
  return nullptr;
}

void check(const DataLoaderOptions& options) {
  const char* twice = decided_twice(options);
  if (options.batch_sampler != nullptr && twice != nullptr) {
    throw UsageError::conflict("DataLoader",
                               fmt::format("{} and a batch_sampler exclude each other", twice),
                               "the batch_sampler decides what is in a batch: give it there");
  }
  if (options.sampler != nullptr && options.shuffle) {
    throw UsageError::conflict("DataLoader", "shuffle and a sampler exclude each other",
                               "the sampler decides the order: leave shuffle off");
  }
  if (options.num_workers < 0) {
    throw UsageError::out_of_range("num_workers", options.num_workers, "a number >= 0");
  }
}

}  // namespace

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options)
    : dataset_(std::move(dataset)), options_(std::move(options)) {
  check(options_);
  batches_ = choose_batches(*dataset_, options_);
  if (options_.transform != nullptr && batches_->evaluation_only()) {
    throw UsageError::conflict("DataLoader", "a transform with a sampler for evaluation",
                               "evaluate the samples as they are: leave transform empty");
  }
}

void DataLoader::set_epoch(std::int64_t epoch) {
  if (batches_->evaluation_only()) {
    throw UsageError::conflict(
        "DataLoader::set_epoch",
        "this sampler is for evaluation: in training, ranks with unequal parts would wait for "
        "each other for ever",
        "train with a DistributedSampler or a ShardedBatchSampler");
  }
  epoch_ = epoch;
}

DataLoader::Iterator DataLoader::begin_at(std::int64_t batch) const {
  BatchMaker maker{dataset_, options_.transform, options_.pin_memory, epoch_};
  auto plans = plan();
  if (batch < 0 || batch > std::ssize(plans)) {
    throw UsageError::out_of_range("DataLoader::begin_at", batch,
                                   fmt::format("0 to {}", std::ssize(plans)),
                                   fmt::format("the epoch has {} batches", std::ssize(plans)));
  }
  plans.erase(plans.begin(), plans.begin() + batch);
  if (options_.num_workers == 0) {
    return Iterator(std::make_unique<SerialSource>(std::move(maker), std::move(plans)));
  }
  return Iterator(std::make_unique<PrefetchingSource>(
      std::move(maker), std::move(plans), static_cast<std::size_t>(options_.num_workers)));
}

}  // namespace ladder
