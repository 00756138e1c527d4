// SPDX-License-Identifier: Apache-2.0
#include "ladder/observe/fingerprint.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/nn/model.h"
#include "ladder/nn/state_dict.h"

namespace ladder {
namespace {

// Of the positions of each micro-batch: those of all ranks, in the order of the ranks, are the same
// for any number of them.
nlohmann::ordered_json digests_of_micro_batches(const Batch& batch) {
  nlohmann::ordered_json digests = nlohmann::ordered_json::array();
  const std::int64_t size = batch.positions.size(0);
  for (std::int64_t begin = 0; begin < size; begin += batch.micro_batch) {
    const auto count = std::min(batch.micro_batch, size - begin);
    digests.push_back(tensor_digest(batch.positions.narrow(0, begin, count)));
  }
  return digests;
}

}  // namespace

Fingerprint::Fingerprint(const std::string& path, std::int64_t interval, int rank, int world_size)
    : interval_(interval), rank_(rank), world_size_(world_size) {
  if (interval <= 0)
    throw UsageError::out_of_range("fingerprint", interval, "a number > 0", "1 records each step");
  file_ = JsonLines(path, "fingerprint");
}

void Fingerprint::record(std::int64_t step, const Batch& batch, const torch::Tensor& loss,
                         const torch::nn::Module& module) {
  if (step % interval_ != 0) return;
  nlohmann::ordered_json gradients = nlohmann::ordered_json::object();
  for (const auto& item : unwrapped(module).named_parameters()) {
    const auto& gradient = item.value().grad();
    if (gradient.defined()) gradients[item.key()] = tensor_digest(gradient);
  }
  nlohmann::ordered_json weights = nlohmann::ordered_json::object();
  for (const auto& [name, tensor] : unwrapped_state_dict(module)) {
    weights[name] = tensor_digest(tensor);
  }
  nlohmann::ordered_json record = {{"step", step},
                                   {"epoch", batch.epoch + 1},
                                   {"rank", rank_},
                                   {"world_size", world_size_},
                                   {"positions", tensor_digest(batch.positions)},
                                   {"loss", tensor_digest(loss)},
                                   {"loss_value", loss.item<double>()},
                                   {"gradients", gradients},
                                   {"weights", weights}};
  if (batch.micro_batch > 0) {
    record["micro_batch"] = batch.micro_batch;
    record["positions_of_micro_batches"] = digests_of_micro_batches(batch);
  }
  file_.write(record);
  has_recorded_ = true;
}

Verdict Fingerprint::step(const StepEvent& event) {
  if (event.updated) record(event.step, event.batch, event.loss, event.model);
  return {};
}

Verdict Fingerprint::end() {
  if (!has_recorded_) {
    Log({.rank = rank_})
        .warn(fmt::format("fingerprint: nothing was recorded: it begins with step {}", interval_));
  }
  return {};
}

std::string Fingerprint::path_beside(const std::string& metrics_path, int rank) {
  constexpr std::string_view kSuffix = ".jsonl";
  std::string_view stem = metrics_path;
  if (stem.ends_with(kSuffix)) stem.remove_suffix(kSuffix.size());
  return fmt::format("{}.rank{}.jsonl", stem, rank);
}

}  // namespace ladder
