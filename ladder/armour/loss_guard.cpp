// SPDX-License-Identifier: Apache-2.0
#include "ladder/armour/loss_guard.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/utils.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/nn/model.h"
#include "ladder/nn/state_dict.h"

namespace ladder {
namespace {

constexpr std::size_t kMaxShown = 64;

std::span<const std::int64_t> numbers(const torch::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel())};
}

std::string samples(const torch::Tensor& indices) {
  const auto all = numbers(indices);
  if (all.empty()) return "no samples";
  const auto shown = all.first(std::min(all.size(), kMaxShown));
  const auto more = all.size() - shown.size();
  return fmt::format("samples {}{}", fmt::join(shown, " "),
                     more == 0 ? "" : fmt::format(" and {} more", more));
}

std::string hint_of_model(const torch::nn::Module& model) {
  const std::string hint =
      "use a smaller learning rate, or find the first bad step with a fingerprint of every step";
  if (micro_batch_of(model) == 0) return hint;
  return hint + "; sums in micro-batches turn large gradients into NaN: sums in float do not";
}

std::string step_text(std::int64_t epoch, std::int64_t step) {
  return fmt::format("epoch {}, step {}", epoch, step);
}

}  // namespace

std::string first_non_finite_tensor(const Batch& batch, const torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, input] : batch.inputs) {
    if (all_finite(input)) continue;
    const auto bad_rows =
        input.reshape({input.size(0), -1}).isfinite().all(1).logical_not().nonzero().cpu();
    const auto row = static_cast<std::size_t>(bad_rows.const_data_ptr<std::int64_t>()[0]);
    const auto indices = numbers(batch.indices);
    return row < indices.size() ? fmt::format("{} of sample {}", name, indices[row]) : name;
  }
  for (const auto& parameter : unwrapped(model).named_parameters()) {
    const auto& gradient = parameter.value().grad();
    if (!gradient.defined() || all_finite(gradient)) continue;
    return "gradient of " + parameter.key();
  }
  return "the loss";
}

LossGuard::LossGuard(const torch::nn::Module& model, RunSetup setup)
    : model_(model),
      setup_(std::move(setup)),
      own_meter_(std::make_shared<LossMeter>(setup_.device)),
      meter_(own_meter_) {}

void LossGuard::begin_epoch(const EpochStart& start) {
  own_meter_->begin_epoch(start.epoch);
  meter_ = start.meter ? start.meter : own_meter_;
}

void LossGuard::add(const Batch& batch, const torch::Tensor& loss, std::int64_t step,
                    bool updated) {
  meter_->add(loss, batch, step, updated);
  check(batch, updated);
}

void LossGuard::check(const Batch& batch, bool updated) {
  note(&batch);
  if (!updated) return;
  // A GPU's steps are read together, and then all are due.
  const bool each_read = setup_.group.world_size() == 1 || !setup_.device.is_cpu();
  if (++unchecked_ >= (each_read ? 1 : kSteps) && meter_->is_read()) agree();
}

Verdict LossGuard::step(const StepEvent& event) {
  if (meter_ == own_meter_) meter_->add(event.loss, event.batch, event.step, event.updated);
  check(event.batch, event.updated);
  return {};
}

void LossGuard::flush() {
  meter_->flush();
  note(nullptr);
  agree();
}

// Keeps the first bad step, and its first bad tensor if `batch` is its batch.
void LossGuard::note(const Batch* batch) {
  const auto& found = meter_->bad();
  if (!found || bad_) return;
  bad_ = found;
  if (batch == nullptr || !batch->indices.defined()) return;
  if (!batch->indices.is_same(found->indices)) return;
  try {
    bad_tensor_ = first_non_finite_tensor(*batch, model_);
  } catch (const c10::Error&) {  // isfinite() lacks some layouts; the other ranks wait
    bad_tensor_.clear();
  }
}

// Throws, on all ranks, if one of them has a bad step.
void LossGuard::agree() {
  unchecked_ = 0;
  const auto& group = setup_.group;
  const std::int64_t world_size = group.world_size();
  // A step and a rank as one number, larger for earlier steps; 0 = no bad step.
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t own = bad_ ? kMost - (bad_->step * world_size + group.rank()) : 0;
  std::int64_t first = own;
  if (world_size > 1) {
    auto of_all = torch::tensor({own}, torch::kInt64).to(setup_.device);
    group.all_reduce(of_all, ReduceOp::kMax);
    first = of_all.item<std::int64_t>();
  }
  if (first == 0) return;
  const auto first_step = (kMost - first) / world_size;
  const auto first_rank = (kMost - first) % world_size;
  if (bad_ && bad_->step == first_step) {
    const auto& last = setup_.checkpoints.last;
    const auto checkpoint = last ? last() : "";
    throw NumericError::of(
        step_text(bad_->epoch, bad_->step), "a finite loss",
        fmt::format("{} (first bad tensor: {}; {}; last checkpoint: {})", bad_->loss,
                    bad_tensor_.empty() ? "unknown" : bad_tensor_, samples(bad_->indices),
                    checkpoint.empty() ? "none" : checkpoint),
        hint_of_model(model_));
  }
  throw DistributedError::of(step_text(meter_->epoch(), first_step), "a finite loss on every rank",
                             fmt::format("NaN or infinity on rank {}", first_rank),
                             fmt::format("see the error of rank {}", first_rank));
}

}  // namespace ladder
