// SPDX-License-Identifier: Apache-2.0
#include "ladder/monitor/loss_meter.h"

#include <cmath>
#include <iterator>
#include <utility>

namespace ladder {

LossMeter::LossMeter(const torch::Device& device, std::int64_t interval) : interval_(interval) {
  if (interval_ == 0) interval_ = device.is_cpu() ? 1 : kGpuInterval;
}

void LossMeter::begin_epoch(std::int64_t epoch) {
  epoch_ = epoch;
  sum_ = 0.0;
  samples_ = 0;
  bad_.reset();
}

std::optional<NonFiniteStep> LossMeter::add(const torch::Tensor& loss, const Batch& batch,
                                            std::int64_t step, bool updated) {
  pending_.push_back({step, loss.detach(), batch.indices, batch.size(), batch.num_items()});
  const bool is_due = interval_ == 1 || (updated && std::ssize(pending_) >= interval_);
  return is_due ? flush() : std::nullopt;
}

std::optional<NonFiniteStep> LossMeter::flush() {
  if (pending_.empty()) return std::nullopt;
  const auto steps = std::exchange(pending_, {});
  const auto losses = values_of(steps);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!std::isfinite(losses[i])) {
      const NonFiniteStep found{losses[i], epoch_, steps[i].step, steps[i].indices};
      if (!bad_) bad_ = found;
      return found;
    }
  }
  for (std::size_t i = 0; i < steps.size(); ++i) count(steps[i], losses[i]);
  return std::nullopt;
}

void LossMeter::count(const Pending& step, double loss) {
  // The loss is sum × ranks ÷ global batch (NumItems::mean); this turns it back into the local sum.
  const auto& items = step.items;
  const double weight = static_cast<double>(items.global) / static_cast<double>(items.processes);
  // And this into their mean: 1 if all ranks have as many samples, and there are no micro-batches.
  const double share = step.samples > 0 ? weight / static_cast<double>(step.samples) : kUnknown;
  sum_ += loss * weight;
  last_ = loss * share;
  samples_ += step.samples;
}

// Reads the losses at once. Waits for a GPU.
std::vector<double> LossMeter::values_of(const std::vector<Pending>& steps) {
  if (steps.size() == 1) return {steps[0].loss.item<double>()};
  std::vector<torch::Tensor> losses;
  for (const auto& step : steps) losses.push_back(step.loss.reshape({}));
  const auto values = torch::stack(losses).cpu().to(torch::kFloat64);
  const auto* first = values.const_data_ptr<double>();
  return {first, first + values.numel()};
}

}  // namespace ladder
