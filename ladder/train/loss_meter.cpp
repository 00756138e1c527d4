// SPDX-License-Identifier: Apache-2.0
#include "ladder/train/loss_meter.h"

#include <torch/types.h>

#include <cmath>
#include <utility>

namespace ladder {
namespace {

// The elements of pending_.
constexpr std::int64_t kSum = 0;
constexpr std::int64_t kLast = 1;
constexpr std::int64_t kBadStep = 2;
constexpr std::int64_t kBadLoss = 3;

}  // namespace

LossMeter::LossMeter(const torch::Device& device, std::int64_t interval)
    : device_(device), interval_(interval) {
  if (interval_ == 0) interval_ = device.is_cpu() ? 1 : kGpuInterval;
}

void LossMeter::begin_epoch(std::int64_t epoch) {
  epoch_ = epoch;
  sum_ = 0.0;
  samples_ = 0;
}

std::optional<NonFiniteStep> LossMeter::add(const torch::Tensor& loss, const Batch& batch,
                                            std::int64_t step, bool updated) {
  // The loss is sum × ranks ÷ global batch (NumItems::mean); this turns it back into the local sum.
  const double weight =
      static_cast<double>(batch.global_size) / static_cast<double>(batch.world_size);
  if (interval_ == 1) {
    const auto value = loss.item<double>();
    if (!std::isfinite(value)) return NonFiniteStep{value, epoch_, step, batch.indices};
    sum_ += value * weight;
    last_ = value;
    samples_ += batch.size();
    return std::nullopt;
  }
  pending_steps_.push_back({step, batch.indices});
  pending_samples_ += batch.size();
  keep_on_device(loss.detach(), weight);
  return updated && std::ssize(pending_steps_) >= interval_ ? flush() : std::nullopt;
}

void LossMeter::keep_on_device(const torch::Tensor& loss, double weight) {
  const auto value = loss.to(torch::kFloat64);
  if (pending_steps_.size() == 1) {
    pending_ = torch::zeros({4}, torch::dtype(torch::kFloat64).device(device_));
  }
  const auto is_first_bad = pending_[kBadStep].eq(0).logical_and(value.isfinite().logical_not());
  pending_[kSum] += value * weight;
  pending_[kLast].copy_(value);
  pending_[kBadLoss].copy_(torch::where(is_first_bad, value, pending_[kBadLoss]));
  pending_[kBadStep].copy_(
      torch::where(is_first_bad, static_cast<double>(pending_steps_.size()), pending_[kBadStep]));
}

std::optional<NonFiniteStep> LossMeter::flush() {
  if (pending_steps_.empty()) return std::nullopt;
  const auto steps = std::exchange(pending_steps_, {});
  const auto values = pending_.cpu();
  const auto* value = values.const_data_ptr<double>();
  const auto samples = std::exchange(pending_samples_, 0);
  if (value[kBadStep] != 0.0) {
    const auto& bad = steps.at(static_cast<std::size_t>(value[kBadStep]) - 1);
    return NonFiniteStep{value[kBadLoss], epoch_, bad.step, bad.indices};
  }
  sum_ += value[kSum];
  last_ = value[kLast];
  samples_ += samples;
  return std::nullopt;
}

}  // namespace ladder
