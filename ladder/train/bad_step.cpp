// SPDX-License-Identifier: Apache-2.0
#include "ladder/train/bad_step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

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

bool is_finite(const torch::Tensor& tensor) {
  return !tensor.defined() || tensor.isfinite().all().item<bool>();
}

}  // namespace

std::string first_bad_tensor(const Batch& batch, const torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  if (!is_finite(batch.images)) {
    const auto bad = batch.images.flatten(1).isfinite().all(1).logical_not().nonzero().cpu();
    const auto place = static_cast<std::size_t>(bad.const_data_ptr<std::int64_t>()[0]);
    const auto indices = numbers(batch.indices);
    return place < indices.size() ? fmt::format("images of sample {}", indices[place]) : "images";
  }
  for (const auto& parameter : model.named_parameters()) {
    if (is_finite(parameter.value().grad())) continue;
    return "gradient of " + without_module_prefix(parameter.key());
  }
  return "the loss";
}

void throw_bad_step(const BadStep& bad, const std::string& first_bad_tensor,
                    const std::string& checkpoint) {
  if (std::isfinite(bad.loss)) {
    throw DistributedError::gradient_of_another_rank(bad.epoch, bad.step);
  }
  const auto or_else = [](const std::string& text, const char* instead) {
    return text.empty() ? instead : text;
  };
  throw NumericError::loss_not_finite(
      bad.loss, bad.epoch, bad.step,
      fmt::format("first bad tensor: {}; {}; last checkpoint: {}",
                  or_else(first_bad_tensor, "unknown"), samples(bad.indices),
                  or_else(checkpoint, "none")));
}

}  // namespace ladder
