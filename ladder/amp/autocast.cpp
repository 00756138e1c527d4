// SPDX-License-Identifier: Apache-2.0
#include "ladder/amp/autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/version.h>

#include <utility>

#include "ladder/core/error.h"

namespace ladder {
namespace {

// Before 2.11, a weight that a forward without gradients has converted stays in the cache without
// its way back (pytorch/pytorch#158232): a later forward trains it no more, silently.
constexpr bool kCacheKeepsGradients = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 11;

void require_autocast_dtype(torch::ScalarType dtype) {
  for (const auto known : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    if (dtype == known) return;
  }
  throw UsageError::malformed("Autocast dtype", "bfloat16, float16, or float32 for none",
                              torch::toString(dtype), "such as torch::kBFloat16");
}

}  // namespace

Autocast::Autocast(const torch::Device& device, torch::ScalarType dtype,
                   std::optional<bool> cache_enabled)
    : device_(device.type()),
      enabled_before_(at::autocast::is_autocast_enabled(device_)),
      dtype_before_(at::autocast::get_autocast_dtype(device_)),
      cache_enabled_before_(at::autocast::is_autocast_cache_enabled()) {
  require_autocast_dtype(dtype);
  const bool enabled = dtype != torch::kFloat32;
  at::autocast::set_autocast_enabled(device_, enabled);
  if (enabled) at::autocast::set_autocast_dtype(device_, dtype);
  at::autocast::increment_nesting();
  at::autocast::set_autocast_cache_enabled(
      cache_enabled.value_or(kCacheKeepsGradients && cache_enabled_before_));
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
  at::autocast::set_autocast_cache_enabled(cache_enabled_before_);
}

AutocastModel::AutocastModel(std::shared_ptr<Model> module, torch::ScalarType dtype)
    : ModelWrapper(std::move(module)), dtype_(dtype) {
  require_autocast_dtype(dtype);
}

torch::Tensor AutocastModel::forward(const Inputs& inputs) {
  const Autocast autocast(inputs.device(), dtype_);
  return at_least_float32(module_->forward(inputs));
}

std::shared_ptr<Model> AutocastModel::new_like() const {
  return std::make_shared<AutocastModel>(module_->new_like(), dtype_);
}

}  // namespace ladder
