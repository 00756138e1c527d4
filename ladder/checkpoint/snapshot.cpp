// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/snapshot.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "ladder/checkpoint/checkpoint_store.h"
#include "ladder/checkpoint/loader_position.h"
#include "ladder/core/error.h"
#include "ladder/io/sha256.h"
#include "ladder/launch/signals.h"

namespace ladder {
namespace {

template <typename Object>
std::shared_ptr<Object> not_owned(Object& object) {
  return {std::shared_ptr<void>(), &object};
}

}  // namespace

Snapshot::Snapshot(SnapshotOptions options, ProcessGroup group, torch::nn::Module& model,
                   torch::optim::Optimizer& optimizer, LrScheduler& scheduler)
    : options_(std::move(options)),
      group_(std::move(group)),
      state_{.models = {not_owned(model)},
             .optimizers = {not_owned(optimizer)},
             .schedulers = {not_owned(scheduler)},
             .device = model.parameters().at(0).device()} {
  if (options_.path.empty()) return;
  options_.path = behind_links(options_.path);  // the link stays
  require_checkpoint_name("snapshot", options_.path, "runs/snapshot");
}

CheckpointHooks Snapshot::hooks() {
  if (options_.path.empty()) return {};
  return {.save = [this] { return save(); }, .last = [this] { return last_; }};
}

void Snapshot::resume(DataLoader& loader, TrainingMonitor& monitor, const Log& log) {
  if (options_.path.empty()) return;
  const auto where = "snapshot " + options_.path;
  loader_ = &loader;
  monitor_ = &monitor;
  log_ = log;
  const auto progress = json_part(monitor, "progress.json");
  state_.custom = added_;
  state_.custom.push_back(json_part(
      "sampler.json", [this] { return position(); },
      [this](const auto& state, auto from) { return plan_position(state, from); }));
  state_.custom.push_back(progress);
  claim_ = checkpoint_store().claim(where, options_.path, {progress}, group_, log);
  // Rank 0 decides: other ranks may see the folder later.
  auto found = torch::full({}, checkpoint_exists(options_.path) ? 1 : 0, torch::kInt64);
  auto elsewhere = found.clone();
  group_.broadcast(found);
  group_.all_reduce(elsewhere, ReduceOp::kMax);
  if (found.item<std::int64_t>() == 0 && elsewhere.item<std::int64_t>() != 0) {
    throw DistributedError::ranks_disagree(
        where, "none, as on rank 0", "one on another rank",
        "use a folder that all ranks share; to start over: rm -r " + options_.path);
  }
  if (found.item<std::int64_t>() == 0) {
    log.info(fmt::format("no snapshot in {}: training from the start", options_.path));
    return;
  }
  load_training_state(options_.path, state_, group_, log);
  last_ = options_.path;
}

void Snapshot::after_step() {
  if (monitor_ != nullptr && monitor_->every(options_.steps)) save();
}

void Snapshot::after_epoch() {
  if (monitor_ != nullptr && options_.steps == 0) save();
}

std::string Snapshot::save() {
  save_training_state(options_.path, state_, group_, {.latest = false});
  last_ = options_.path;
  after_save()(last_);
  return last_;
}

// The batch with which the run goes on. Between two epochs, that is the first of the next one.
nlohmann::json Snapshot::position() const {
  const auto batch = monitor_->batches_done();
  const auto epoch = batch > 0 ? loader_->epoch() : loader_->epoch() + 1;
  return {{"epoch", epoch},
          {"batch", batch},
          {"batches", loader_->size()},
          {"order", batch == 0 ? "" : order_digest(epoch)},
          {kDataOfPosition, loader_->dataset().description()},
          {"micro_batch", micro_batch()}};
}

std::int64_t Snapshot::micro_batch() const { return loader_->batch_sampler()->micro_batch(); }

std::function<void()> Snapshot::plan_position(const nlohmann::json& state,
                                              std::string_view origin) {
  const auto position = read_loader_position(state, origin, loader_->dataset().description(),
                                             micro_batch(), group_.rank());
  const auto is_other_order = [&] {  // only rank 0 can compute its digest
    return group_.rank() == 0 && position.order != order_digest(position.epoch);
  };
  if (position.batch > 0 && (position.batches != loader_->size() || is_other_order())) {
    throw UsageError::conflict(
        origin,
        fmt::format("the position is batch {} of an epoch with other batches", position.batch),
        fmt::format(
            "resume with the data, batch size, batch mode and seed of the run that wrote it "
            "and, except in global mode, its number of ranks; or start over: rm -r {}",
            options_.path));
  }
  return [loader = loader_, position] { loader->resume_at(position.epoch, position.batch); };
}

// Of the size and the first sample of each batch. In global mode, rank 0's part begins with the
// first sample of the whole batch, so the digest is the same for any number of ranks.
std::string Snapshot::order_digest(std::int64_t epoch) const {
  Sha256 hash;
  for (const auto& batch : loader_->batch_sampler()->batches_of(epoch)) {
    const std::array<std::int64_t, 2> begin = {batch.global_size,
                                               batch.indices.empty() ? -1 : batch.indices.front()};
    hash.update(std::as_bytes(std::span(begin)));
  }
  return hash.hex_digest();
}

}  // namespace ladder
