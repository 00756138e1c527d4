// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/data_loader.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stop_token>
#include <system_error>
#include <thread>
#include <variant>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/core/system_limits.h"

namespace ladder {
namespace {

constexpr std::size_t kBatchesAheadPerWorker = 2;

// Reads one batch; independent of the loader's lifetime.
struct BatchMaker {
  std::shared_ptr<const Dataset> dataset;
  std::shared_ptr<const Transform> transform;
  bool pin_memory;
  std::int64_t epoch;

  // A rank without a sample of the last batch gets no row, with the shape and dtype of sample 0.
  Batch no_rows() const {
    const auto none = [](const torch::Tensor& tensor) { return tensor.narrow(0, 0, 0); };
    Batch batch = dataset->get_batch(std::array{std::int64_t{0}});
    batch.inputs = batch.inputs.map(none);
    if (batch.targets.defined()) batch.targets = none(batch.targets);
    return batch;
  }

  Batch make(const BatchIndices& wanted) const {
    Batch batch = wanted.indices.empty() ? no_rows() : dataset->get_batch(wanted.indices);
    if (const auto wants = std::ssize(wanted.indices); batch.size() != wants) {
      throw UsageError::out_of_range("Dataset::get_batch", batch.size(),
                                     fmt::format("{} rows, one per index", wants),
                                     "a mean over the batch counts its samples");
    }
    if (transform != nullptr) transform->apply(batch.inputs, wanted.indices, epoch);
    batch.positions = torch::tensor(wanted.positions, torch::kInt64);
    batch.indices = torch::tensor(wanted.indices, torch::kInt64);
    batch.epoch = epoch;
    batch.global_size = wanted.global_size;
    batch.world_size = wanted.world_size;
    batch.micro_batch = wanted.micro_batch;
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
  SerialSource(BatchMaker maker, std::vector<BatchIndices> batches)
      : maker_(std::move(maker)), batches_(std::move(batches)) {}

  std::optional<Batch> next() override {
    if (done_ == batches_.size()) return std::nullopt;
    return maker_.make(batches_[done_++]);
  }

 private:
  BatchMaker maker_;
  std::vector<BatchIndices> batches_;
  std::size_t done_ = 0;
};

// Each worker reads the next batch into a ring of slots; the loop takes the slots in order. A
// worker waits while the ring is full, the loop while its slot is empty.
class PrefetchingSource : public BatchSource {
 public:
  PrefetchingSource(BatchMaker maker, std::vector<BatchIndices> batches, std::size_t workers)
      : maker_(std::move(maker)), batches_(std::move(batches)) {
    const std::size_t most = std::max<std::size_t>(1, batches_.size());
    slots_.resize(std::min(workers * kBatchesAheadPerWorker, most));
    try {
      for (std::size_t i = 0; i < std::min(workers, batches_.size()); ++i) {
        threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
      }
    } catch (const std::system_error& error) {
      throw SystemError::failed(fmt::format("start {} threads", workers), "num_workers",
                                error.code().value(), hint_for_processes());
    }
  }

  std::optional<Batch> next() override {
    if (taken_ == batches_.size()) return std::nullopt;
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
    while (const auto index = claim(stop)) {
      Slot slot;
      try {
        slot = maker_.make(batches_[*index]);
      } catch (...) {
        slot = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      slots_[*index % slots_.size()] = std::move(slot);
      changed_.notify_all();
    }
  }

  // The next batch that no worker has, once there is a slot for it; nothing at the end.
  std::optional<std::size_t> claim(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const bool go_on = changed_.wait(lock, stop, [&] {
      return claimed_ == batches_.size() || claimed_ < taken_ + slots_.size();
    });
    if (!go_on || claimed_ == batches_.size()) return std::nullopt;
    return claimed_++;
  }

  BatchMaker maker_;
  std::vector<BatchIndices> batches_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Slot> slots_;
  std::size_t claimed_ = 0;            // batches given to workers
  std::size_t taken_ = 0;              // batches given to the loop
  std::vector<std::jthread> threads_;  // last member: joined before what the threads use
};

std::shared_ptr<const BatchSampler> choose_batches(const Dataset& dataset,
                                                   const DataLoaderOptions& options) {
  if (options.batch_sampler != nullptr) return options.batch_sampler;
  auto sampler = options.sampler;
  if (sampler == nullptr) sampler = make_sampler(dataset.size(), options.shuffle, options.seed);
  return std::make_shared<BatchSampler>(
      std::move(sampler), options.batch_size.value_or(kDefaultBatchSize), options.drop_last);
}

void check(const DataLoaderOptions& options) {
  const char* excluded = options.batch_size.has_value() ? "batch_size"
                         : options.shuffle              ? "shuffle"
                         : options.sampler != nullptr   ? "a sampler"
                         : options.drop_last            ? "drop_last"
                                                        : nullptr;
  if (options.batch_sampler != nullptr && excluded != nullptr) {
    throw UsageError::conflict("DataLoader",
                               fmt::format("{} and a batch_sampler exclude each other", excluded),
                               "the batch_sampler decides what is in a batch: give it there");
  }
  if (options.sampler != nullptr && options.shuffle) {
    throw UsageError::conflict("DataLoader", "shuffle and a sampler exclude each other",
                               "the sampler decides the order: leave shuffle off");
  }
  require_between("num_workers", options.num_workers, 0, kMaxWorkers,
                  "0 reads in the loop itself; one per CPU is enough");
}

}  // namespace

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options)
    : dataset_(std::move(dataset)), options_(std::move(options)) {
  if (dataset_ == nullptr) {
    throw UsageError::missing("DataLoader", "a data set", "the pointer is null: create it first");
  }
  check(options_);
  batches_ = choose_batches(*dataset_, options_);
  if (options_.transform != nullptr && batches_->evaluation_only()) {
    throw UsageError::conflict("DataLoader", "a transform with an evaluation sampler",
                               "evaluate the samples as they are: leave transform empty");
  }
}

void DataLoader::set_epoch(std::int64_t epoch) {
  if (batches_->evaluation_only()) {
    throw UsageError::conflict(
        "DataLoader::set_epoch",
        "an evaluation sampler gives ranks unequal parts: in training they would wait for each "
        "other without end",
        "train with a DistributedSampler or a ShardedBatchSampler");
  }
  if (epoch != epoch_) first_batch_ = 0;
  epoch_ = epoch;
}

void DataLoader::resume_at(std::int64_t epoch, std::int64_t first_batch) {
  set_epoch(epoch);
  first_batch_ = first_batch;
}

DataLoader::Iterator DataLoader::begin_at(std::int64_t batch) const {
  BatchMaker maker{dataset_, options_.transform, options_.pin_memory, epoch_};
  auto batches = batch_indices();
  const auto count = std::ssize(batches);
  require_between("DataLoader::begin_at", batch, 0, count,
                  fmt::format("the epoch has {} batches", count));
  batches.erase(batches.begin(), batches.begin() + batch);
  if (options_.num_workers == 0) {
    return Iterator(std::make_unique<SerialSource>(std::move(maker), std::move(batches)));
  }
  return Iterator(std::make_unique<PrefetchingSource>(
      std::move(maker), std::move(batches), static_cast<std::size_t>(options_.num_workers)));
}

DataLoader with_batches(const DataLoader& loader, std::shared_ptr<const BatchSampler> batches) {
  return DataLoader(loader.shared_dataset(), {.batch_sampler = std::move(batches),
                                              .num_workers = loader.options().num_workers,
                                              .pin_memory = loader.options().pin_memory,
                                              .transform = loader.options().transform});
}

DataLoader limit_batches(const DataLoader& loader, std::int64_t batches) {
  return with_batches(loader,
                      std::make_shared<LimitedBatchSampler>(loader.batch_sampler(), batches));
}

}  // namespace ladder
