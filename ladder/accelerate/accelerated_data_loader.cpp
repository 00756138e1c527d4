// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/accelerated_data_loader.h"

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "ladder/accelerate/dispatch.h"
#include "ladder/checkpoint/saved_json.h"
#include "ladder/core/error.h"
#include "ladder/core/sha256.h"
#include "ladder/data/batch_sampler_shard.h"
#include "ladder/data/distributed_sampler.h"

namespace ladder {
namespace {

std::shared_ptr<const BatchSampler> part_of_rank(const std::shared_ptr<const BatchSampler>& whole,
                                                 const DataLoaderConfiguration& configuration,
                                                 std::int64_t rank, std::int64_t world_size) {
  if (configuration.mode == LoaderMode::kGlobal) {
    return std::make_shared<ShardedBatchSampler>(
        whole, ShardedBatchSamplerOptions{.rank = rank, .world_size = world_size});
  }
  return std::make_shared<BatchSamplerShard>(
      whole,
      BatchSamplerShardOptions{.split_batches = configuration.mode == LoaderMode::kSplitBatches,
                               .even_batches = configuration.even_batches,
                               .dispatch_batches = configuration.dispatch_batches,
                               .rank = rank,
                               .world_size = world_size});
}

// `loader` with other batches and otherwise as it is.
DataLoader with_batches(const DataLoader& loader, std::shared_ptr<const BatchSampler> batches) {
  return DataLoader(loader.shared_dataset(), {.batch_sampler = std::move(batches),
                                              .num_workers = loader.options().num_workers,
                                              .pin_memory = loader.options().pin_memory,
                                              .transform = loader.options().transform});
}

DataLoader with_seed(const DataLoader& loader, const DataLoaderConfiguration& configuration) {
  auto options = loader.options();
  if (!configuration.data_seed || !options.shuffle) return loader;
  options.seed = *configuration.data_seed;
  return DataLoader(loader.shared_dataset(), options);
}

// sha256 over the batches of an epoch, before they are divided.
std::string order_digest(const BatchSampler& whole, std::int64_t epoch) {
  Sha256 hash;
  for (const auto& plan : whole.plan(epoch)) {
    const auto size = std::ssize(plan.indices);
    hash.update(std::as_bytes(std::span(&size, 1)));
    hash.update(std::as_bytes(std::span(plan.indices)));
  }
  return hash.hex_digest();
}

}  // namespace

// Registers with the gradient state for as long as it lives.
class AcceleratedDataLoader::Walk : public BatchSource {
 public:
  Walk(const AcceleratedDataLoader& loader, std::int64_t first)
      : setup_(loader.setup_), place_(loader.place_) {
    prepare_progress(*loader.loader_.batch_sampler(), first);
    const auto own = at_epoch(loader.loader_, place_->epoch);
    if (loader.parts_.empty()) {
      local_ = std::make_unique<DataLoader::Iterator>(own.begin_at(first));
    } else {
      const auto joined = std::make_shared<ConcatBatchSampler>(loader.parts_);
      dispatched_.emplace(at_epoch(with_batches(own, joined), place_->epoch), loader.parts_,
                          setup_.group, first);
    }
    place_->done = first;
    place_->finished = false;
    setup_.gradients->enter(progress_);
  }
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;
  ~Walk() override { setup_.gradients->leave(progress_); }

  std::optional<Batch> next() override {
    if (started_) progress_.samples_before += progress_.global_size();
    auto batch = dispatched_ ? dispatched_->next() : next_of_own();
    started_ = true;
    if (!batch) {
      place_->finished = true;
      return std::nullopt;
    }
    ++progress_.index;
    place_->done = progress_.index + 1;
    progress_.local_size = batch->size();
    return batch->to(setup_.device);
  }

 private:
  static DataLoader at_epoch(DataLoader loader, std::int64_t epoch) {
    const bool has_epochs = !loader.batch_sampler()->evaluation_only();
    if (has_epochs && epoch != loader.epoch()) loader.set_epoch(epoch);
    return loader;
  }

  void prepare_progress(const BatchSampler& batches, std::int64_t first) {
    for (const auto& plan : batches.plan(place_->epoch)) {
      if (std::ssize(progress_.global_sizes) < first) progress_.samples_before += plan.global_size;
      progress_.global_sizes.push_back(plan.global_size);
    }
    progress_.samples = batches.whole_size();
    progress_.index = first - 1;
  }

  std::optional<Batch> next_of_own() {
    if (started_) ++*local_;
    if (*local_ == std::default_sentinel) return std::nullopt;
    return **local_;
  }

  LoaderSetup setup_;
  std::shared_ptr<Place> place_;
  EpochProgress progress_;
  bool started_ = false;
  std::unique_ptr<DataLoader::Iterator> local_;  // or:
  std::optional<BatchDispatcher> dispatched_;
};

AcceleratedDataLoader::AcceleratedDataLoader(DataLoader loader, LoaderSetup setup)
    : loader_(with_seed(loader, setup.configuration)),
      whole_(loader_.batch_sampler()),
      setup_(std::move(setup)) {
  const auto world_size = setup_.group.world_size();
  if (world_size == 1) return;
  const auto part = [&](int rank) {
    return part_of_rank(whole_, setup_.configuration, rank, world_size);
  };
  if (setup_.configuration.dispatch_batches) {
    for (int rank = 0; rank < world_size; ++rank) parts_.push_back(part(rank));
  }
  loader_ = with_batches(loader_, part(setup_.group.rank()));
}

void AcceleratedDataLoader::set_epoch(std::int64_t epoch) {
  loader_.set_epoch(epoch);
  const bool goes_on = place_->resumed && epoch == place_->epoch;
  if (!goes_on) *place_ = Place{.epoch = epoch};
}

std::int64_t AcceleratedDataLoader::epoch() const {
  return place_->finished ? place_->epoch + 1 : place_->epoch;
}

std::int64_t AcceleratedDataLoader::first_batch() const {
  return place_->resumed ? place_->done : first_batch_;
}

AcceleratedDataLoader AcceleratedDataLoader::without_first(std::int64_t batches) const {
  if (batches < 0 || batches > size()) {
    throw UsageError::out_of_range("skip_first_batches", batches,
                                   fmt::format("0 to {}, the batches of an epoch", size()));
  }
  auto copy = *this;
  copy.first_batch_ = batches;
  return copy;
}

nlohmann::json AcceleratedDataLoader::state_dict() const {
  const std::int64_t batch = place_->finished ? 0 : place_->done;
  return {{"epoch", epoch()},
          {"batch", batch},
          {"batches", size()},
          {"order", batch == 0 ? "" : order_digest(*whole_, epoch())}};
}

std::function<void()> AcceleratedDataLoader::plan_load(const nlohmann::json& state,
                                                       std::string_view origin) const {
  const auto epoch = saved_count(state, "epoch", origin);
  const auto batch = saved_count(state, "batch", origin);
  const auto batches = saved_count(state, "batches", origin);
  if (batch > 0 && batches != size()) {
    throw UsageError::conflict(
        origin,
        fmt::format("it stopped after batch {} of {}, and this loader has {} batches an epoch",
                    batch, batches, size()),
        "resume with the batch size, the loader mode and, except in global mode, the number of "
        "processes that it was written with");
  }
  const auto order = state.value("order", nlohmann::json());
  if (batch > 0 && order != order_digest(*whole_, epoch)) {
    throw UsageError::conflict(
        origin,
        fmt::format("it stopped after batch {} of an epoch with other "
                    "batches than this loader's",
                    batch),
        "resume with the data, batch size and seed that it was written with");
  }
  if (batch > batches) {
    throw DataError::mismatch(origin, fmt::format("a batch of {}", batches),
                              fmt::format("batch {}", batch), "the file is no loader's place");
  }
  return [place = place_, epoch, batch] {
    *place = Place{.epoch = epoch, .done = batch, .resumed = true};
  };
}

AcceleratedDataLoader::Iterator AcceleratedDataLoader::begin() const {
  if (place_->finished) *place_ = Place{.epoch = place_->epoch + 1};
  const std::int64_t first = first_batch();
  place_->resumed = false;
  return Iterator(std::make_unique<Walk>(*this, first));
}

}  // namespace ladder
