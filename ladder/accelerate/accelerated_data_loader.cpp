// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/accelerated_data_loader.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "ladder/accelerate/dispatch.h"
#include "ladder/checkpoint/loader_position.h"
#include "ladder/comm/texts.h"
#include "ladder/core/error.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/io/sha256.h"
#include "ladder/nn/model.h"
#include "ladder/nn/state_dict.h"

namespace ladder {
namespace {

std::shared_ptr<const BatchSampler> part_of_rank(const std::shared_ptr<const BatchSampler>& whole,
                                                 const LoaderSetup& setup, std::int64_t rank) {
  const auto& configuration = setup.configuration;
  const std::int64_t world_size = setup.group.world_size();
  if (configuration.mode == LoaderMode::kGlobal) {
    return std::make_shared<ShardedBatchSampler>(
        whole, ShardedBatchSamplerOptions{
                   .rank = rank, .world_size = world_size, .micro_batch = setup.micro_batch});
  }
  return std::make_shared<BatchSamplerShard>(
      whole,
      BatchSamplerShardOptions{.split_batches = configuration.mode == LoaderMode::kSplitBatches,
                               .even_batches = configuration.even_batches,
                               .dispatch_batches = configuration.dispatch_batches,
                               .rank = rank,
                               .world_size = world_size});
}

// With the seed of the configuration, and with page-locked batches for a GPU only.
DataLoader with_setup(const DataLoader& loader, const LoaderSetup& setup) {
  auto options = loader.options();
  if (options.shuffle) options.seed = setup.configuration.data_seed.value_or(options.seed);
  options.pin_memory = options.pin_memory && setup.device.is_cuda();
  return DataLoader(loader.shared_dataset(), options);
}

std::string order_digest(const BatchSampler& whole, std::int64_t epoch) {
  Sha256 hash;
  for (const auto& batch : whole.batches_of(epoch)) {
    const auto size = std::ssize(batch.indices);
    hash.update(std::as_bytes(std::span(&size, 1)));
    hash.update(std::as_bytes(std::span(batch.indices)));
  }
  return hash.hex_digest();
}

// The number of samples, the order of the first epoch, and sample 0, unless it is random.
std::string digest_of(const Dataset& data, const BatchSampler& whole, bool reads) {
  auto text = fmt::format("{} samples, order {}", data.size(), order_digest(whole, 0).substr(0, 8));
  if (!reads || data.size() == 0) return text;
  const RngStateGuard keep;
  const auto sample = [&] {
    const Batch batch = data.get_batch(std::array{std::int64_t{0}});
    std::string digests;
    for (const auto& [name, tensor] : batch.inputs) digests += tensor_digest(tensor);
    return batch.targets.defined() ? digests + tensor_digest(batch.targets) : digests;
  };
  const auto digest = sample();
  return digest == sample() ? text + ", sample 0 " + digest.substr(0, 8) : text;
}

// The processes divide one sequence of batches: with another data set or order on each, some
// samples would be read twice, and others never.
void require_same_data(const std::string& own, const ProcessGroup& group) {
  const auto all = all_gather_text(own, group);
  const auto odd = std::ranges::find_if(all, [&](const auto& text) { return text != all[0]; });
  if (odd == all.end()) return;
  throw DistributedError::ranks_disagree(
      "prepared loader", fmt::format("one data set and one order on all processes: {}", all[0]),
      fmt::format("{} on rank {}", *odd, odd - all.begin()),
      "prepare divides a data set that all processes have, in an order that depends on the epoch "
      "alone; for batches of each process: accelerator.join(batches)");
}

}  // namespace

// One pass. Its progress is in the gradient state while it lives.
class AcceleratedDataLoader::Source : public BatchSource {
 public:
  Source(const AcceleratedDataLoader& loader, std::int64_t first)
      : setup_(loader.setup_), position_(loader.position_) {
    prepare_progress(*loader.loader_.batch_sampler(), first);
    const auto own = at_epoch(loader.loader_, position_->epoch);
    if (loader.parts_.empty()) {
      local_ = std::make_unique<DataLoader::Iterator>(own.begin_at(first));
    } else {
      const auto joined = std::make_shared<ConcatBatchSampler>(loader.parts_);
      dispatched_.emplace(at_epoch(with_batches(own, joined), position_->epoch), loader.parts_,
                          setup_.group, setup_.device, first);
    }
    position_->done = first;
    position_->finished = false;
    setup_.gradients->enter(progress_);
  }
  ~Source() override { setup_.gradients->leave(progress_); }

  std::optional<Batch> next() override {
    if (started_) progress_.samples_before += progress_.global_size();
    auto batch = dispatched_ ? dispatched_->next() : next_of_own();
    started_ = true;
    if (!batch) {
      position_->finished = true;
      return std::nullopt;
    }
    ++progress_.index;
    position_->done = progress_.index + 1;
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
    for (const auto& batch : batches.batches_of(position_->epoch)) {
      if (std::ssize(progress_.global_sizes) < first) progress_.samples_before += batch.global_size;
      progress_.global_sizes.push_back(batch.global_size);
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
  std::shared_ptr<Position> position_;
  EpochProgress progress_;
  bool started_ = false;
  std::unique_ptr<DataLoader::Iterator> local_;  // or:
  std::optional<BatchDispatcher> dispatched_;
};

AcceleratedDataLoader::AcceleratedDataLoader(DataLoader loader, LoaderSetup setup)
    : loader_(with_setup(loader, setup)),
      whole_(loader_.batch_sampler()),
      setup_(std::move(setup)) {
  const auto world_size = setup_.group.world_size();
  if (world_size == 1 && setup_.micro_batch == 0) return;
  const auto part = [&](int rank) { return part_of_rank(whole_, setup_, rank); };
  if (setup_.configuration.dispatch_batches) {
    for (int rank = 0; rank < world_size; ++rank) parts_.push_back(part(rank));
  }
  loader_ = with_batches(loader_, part(setup_.group.rank()));
  const bool reads = !setup_.configuration.dispatch_batches;
  require_same_data(digest_of(loader_.dataset(), *whole_, reads), setup_.group);
}

void AcceleratedDataLoader::set_epoch(std::int64_t epoch) {
  loader_.set_epoch(epoch);
  if (position_->resumed && epoch == position_->epoch) return;
  *position_ = Position{.epoch = epoch};
}

std::int64_t AcceleratedDataLoader::epoch() const {
  return position_->finished ? position_->epoch + 1 : position_->epoch;
}

std::int64_t AcceleratedDataLoader::first_batch() const {
  return position_->resumed ? position_->done : first_batch_;
}

AcceleratedDataLoader AcceleratedDataLoader::without_first(std::int64_t batches) const {
  if (batches < 0 || batches > size()) {
    throw UsageError::out_of_range("skip_first_batches", batches,
                                   fmt::format("0 to {}, the batches of an epoch", size()),
                                   "0 skips nothing");
  }
  auto copy = *this;
  copy.first_batch_ = batches;
  return copy;
}

nlohmann::json AcceleratedDataLoader::state_dict() const {
  const std::int64_t batch = position_->finished ? 0 : position_->done;
  nlohmann::json state = {{"epoch", epoch()},
                          {"batch", batch},
                          {"batches", size()},
                          {"order", batch == 0 ? "" : order_digest(*whole_, epoch())},
                          {kDataOfPosition, loader_.dataset().description()}};
  if (setup_.micro_batch > 0) state["micro_batch"] = setup_.micro_batch;
  return state;
}

std::function<void()> AcceleratedDataLoader::plan_load(const nlohmann::json& state,
                                                       std::string_view origin) const {
  const auto saved = read_loader_position(state, origin, loader_.dataset().description(),
                                          setup_.micro_batch, setup_.group.rank());
  if (saved.batch > 0 && saved.batches != size()) {
    throw UsageError::conflict(
        origin,
        fmt::format("the position is batch {} of {}, and this loader has {} batches per epoch",
                    saved.batch, saved.batches, size()),
        "resume with the number of samples, the batch size, the loader mode and, except in global "
        "mode, the number of processes of the run that wrote it");
  }
  if (saved.batch > 0 && saved.order != order_digest(*whole_, saved.epoch)) {
    throw UsageError::conflict(
        origin, fmt::format("the position is batch {} of an epoch with other batches", saved.batch),
        "resume with the data, batch size and seed of the run that wrote it");
  }
  return [position = position_, saved] {
    *position = Position{
        .epoch = saved.epoch, .done = saved.batch, .resumed = true, .saved_batches = saved.batches};
  };
}

AcceleratedDataLoader::Iterator AcceleratedDataLoader::begin() const {
  if (position_->finished) *position_ = Position{.epoch = position_->epoch + 1};
  const std::int64_t first = first_batch();
  position_->resumed = false;
  return Iterator(std::make_unique<Source>(*this, first));
}

}  // namespace ladder
