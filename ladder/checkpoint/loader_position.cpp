// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/loader_position.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/core/log.h"
#include "ladder/core/text.h"
#include "ladder/io/json.h"

namespace ladder {
namespace {

void require_micro_batch(const JsonReader& position, std::string_view origin,
                         std::int64_t micro_batch) {
  const auto saved = position.contains("micro_batch") ? position.count("micro_batch") : 0;
  if (saved == micro_batch) return;
  const auto text = [](std::int64_t size) {
    return size == 0 ? "sums in float" : fmt::format("sums of micro-batches of {}", size);
  };
  throw UsageError::conflict(
      origin,
      fmt::format("it was written with {}, and this run has {}", text(saved), text(micro_batch)),
      "resume with the sums and the micro-batch size of that run");
}

void require_same_data(const JsonReader& position, std::string_view origin,
                       const std::string& description, bool within_epoch, int rank) {
  if (!position.contains(kDataOfPosition) || position.text(kDataOfPosition) == description) return;
  const auto written = shortened(position.text(kDataOfPosition));
  if (within_epoch) {
    throw UsageError::conflict(
        origin, fmt::format("it was written with {}, and this run has {}", written, description),
        "resume with the data of that run, or from a checkpoint between two epochs");
  }
  if (rank != 0) return;
  Log().warn(fmt::format("{}: written with {}; this run has {}", origin, written, description));
}

}  // namespace

LoaderPosition read_loader_position(const nlohmann::json& state, std::string_view origin,
                                    const std::string& data, std::int64_t micro_batch, int rank) {
  const JsonReader saved(state, json_data_error(origin));
  const auto& order = saved.value("order");
  const LoaderPosition position = {.epoch = saved.count("epoch", kMaxEpochs),
                                   .batch = saved.count("batch"),
                                   .batches = saved.count("batches"),
                                   .order = order.is_string() ? order.get<std::string>() : ""};
  require_same_data(saved, origin, data, position.batch > 0, rank);
  require_micro_batch(saved, origin, micro_batch);
  if (position.batch <= position.batches) return position;
  throw DataError::mismatch(origin, fmt::format("a batch of {}", position.batches),
                            fmt::format("batch {}", position.batch), "not a data-loader state");
}

}  // namespace ladder
