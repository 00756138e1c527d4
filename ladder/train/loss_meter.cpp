// SPDX-License-Identifier: Apache-2.0
#include "ladder/train/loss_meter.h"

#include <torch/types.h>

#include <cmath>

#include "ladder/core/error.h"

namespace ladder {
namespace {

// Places in the tensor of what is pending.
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

void LossMeter::add(const torch::Tensor& loss, const Batch& batch, std::int64_t step) {
  // Recipe::loss is sum × ranks ÷ global batch; this turns it back into the local sum.
  const double weight =
      static_cast<double>(batch.global_size) / static_cast<double>(batch.world_size);
  if (interval_ == 1) {
    take(loss.item<double>(), weight, step);
    samples_ += batch.size();
    return;
  }
  keep_on_device(loss.detach(), weight, step);
  pending_samples_ += batch.size();
  if (++pending_steps_ == interval_) flush();
}

void LossMeter::take(double loss, double weight, std::int64_t step) {
  if (!std::isfinite(loss)) throw NumericError::loss_not_finite(loss, epoch_, step);
  sum_ += loss * weight;
  last_ = loss;
}

void LossMeter::keep_on_device(const torch::Tensor& loss, double weight, std::int64_t step) {
  const auto value = loss.to(torch::kFloat64);
  if (pending_steps_ == 0) {
    pending_ = torch::zeros({4}, torch::dtype(torch::kFloat64).device(device_));
  }
  const auto is_first_bad = pending_[kBadStep].eq(0).logical_and(value.isfinite().logical_not());
  pending_[kSum] += value * weight;
  pending_[kLast].copy_(value);
  pending_[kBadLoss].copy_(torch::where(is_first_bad, value, pending_[kBadLoss]));
  pending_[kBadStep].copy_(
      torch::where(is_first_bad, static_cast<double>(step), pending_[kBadStep]));
}

void LossMeter::flush() {
  if (pending_steps_ == 0) return;
  const auto values = pending_.cpu();
  const auto* value = values.const_data_ptr<double>();
  pending_steps_ = 0;
  if (value[kBadStep] != 0.0) {
    throw NumericError::loss_not_finite(value[kBadLoss], epoch_,
                                        static_cast<std::int64_t>(value[kBadStep]));
  }
  sum_ += value[kSum];
  last_ = value[kLast];
  samples_ += pending_samples_;
  pending_samples_ = 0;
}

}  // namespace ladder
