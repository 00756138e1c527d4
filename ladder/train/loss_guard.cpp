// SPDX-License-Identifier: Apache-2.0
#include "ladder/train/loss_guard.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "ladder/checkpoint/state_dict.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr std::size_t kMostShown = 64;

std::span<const std::int64_t> numbers(const torch::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel())};
}

std::string samples(const torch::Tensor& indices) {
  const auto all = numbers(indices);
  if (all.empty()) return "no samples";
  const auto shown = all.first(std::min(all.size(), kMostShown));
  const auto more = all.size() - shown.size();
  return fmt::format("samples {}{}", fmt::join(shown, " "),
                     more == 0 ? "" : fmt::format(" and {} more", more));
}

bool all_finite(const torch::Tensor& tensor) {
  return !tensor.defined() || !tensor.is_floating_point() || tensor.isfinite().all().item<bool>();
}

// "images of sample 17": the first row of `input` that is not finite.
std::string first_bad_row(const std::string& name, const torch::Tensor& input,
                          std::span<const std::int64_t> indices) {
  const auto bad =
      input.reshape({input.size(0), -1}).isfinite().all(1).logical_not().nonzero().cpu();
  const auto row = static_cast<std::size_t>(bad.const_data_ptr<std::int64_t>()[0]);
  return row < indices.size() ? fmt::format("{} of sample {}", name, indices[row]) : name;
}

std::string step_text(std::int64_t epoch, std::int64_t step) {
  return fmt::format("epoch {}, step {}", epoch, step);
}

// A step and a rank as one number, of which the largest is the first step: 0 = no bad step.
std::int64_t encoded(std::int64_t step, std::int64_t rank, std::int64_t world_size) {
  return std::numeric_limits<std::int64_t>::max() - (step * world_size + rank);
}

}  // namespace

std::string first_non_finite_tensor(const Batch& batch, const torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, input] : batch.inputs) {
    if (!all_finite(input)) return first_bad_row(name, input, numbers(batch.indices));
  }
  for (const auto& parameter : model.named_parameters()) {
    if (all_finite(parameter.value().grad())) continue;
    return "gradient of " + without_module_prefix(parameter.key());
  }
  return "the loss";
}

LossGuard::LossGuard(const torch::nn::Module& model, RunSetup setup)
    : model_(model), setup_(std::move(setup)), meter_(setup_.device) {}

void LossGuard::add(const Batch& batch, const torch::Tensor& loss, std::int64_t step,
                    bool updated) {
  note(meter_.add(loss, batch, step, updated), &batch);
  if (updated && meter_.is_read()) agree();
}

void LossGuard::flush() {
  note(meter_.flush(), nullptr);
  agree();
}

// The first one counts. Its tensors are looked at if its batch is still at hand.
void LossGuard::note(const std::optional<NonFiniteStep>& found, const Batch* batch) {
  if (!found || bad_) return;
  bad_ = found;
  const bool at_hand =
      batch != nullptr && batch->indices.defined() && batch->indices.is_same(found->indices);
  if (!at_hand) return;
  try {
    bad_tensor_ = first_non_finite_tensor(*batch, model_);
  } catch (const c10::Error&) {  // isfinite() does not know each layout; the other ranks wait
    bad_tensor_.clear();
  }
}

// Throws, on all ranks, if one of them has a bad step.
void LossGuard::agree() {
  const auto& group = setup_.group;
  const std::int64_t world_size = group.world_size();
  const std::int64_t own = bad_ ? encoded(bad_->step, group.rank(), world_size) : 0;
  auto of_all = torch::tensor({own}, torch::kInt64).to(setup_.device);
  group.all_reduce(of_all, ReduceOp::kMax);
  const auto first = of_all.item<std::int64_t>();
  if (bad_) {
    const auto& last = setup_.checkpoints.last;
    const auto checkpoint = last ? last() : "";
    throw NumericError::of(
        step_text(bad_->epoch, bad_->step), "a finite loss",
        fmt::format("{} (first bad tensor: {}; {}; last checkpoint: {})", bad_->loss,
                    bad_tensor_.empty() ? "unknown" : bad_tensor_, samples(bad_->indices),
                    checkpoint.empty() ? "none" : checkpoint),
        "use a smaller learning rate, or find the first bad step with a fingerprint of every step");
  }
  if (first == 0) return;
  const auto code = std::numeric_limits<std::int64_t>::max() - first;
  throw DistributedError::of(step_text(meter_.epoch(), code / world_size),
                             "a finite loss on every rank",
                             fmt::format("NaN or infinity on rank {}", code % world_size),
                             fmt::format("see the error of rank {}", code % world_size));
}

}  // namespace ladder
