// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/state_dict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/utils.h>

#include <utility>
#include <vector>

#include "ladder/checkpoint/tensor_bytes.h"
#include "ladder/core/error.h"
#include "ladder/core/sha256.h"

namespace ladder {
namespace {

constexpr std::string_view kModulePrefix = "module.";

std::string shape_text(const torch::Tensor& tensor) {
  return fmt::format("{}", fmt::join(tensor.sizes(), ","));
}

[[noreturn]] void refuse(std::string_view origin, const std::string& expected,
                         const std::string& got) {
  throw DataError::mismatch(origin, expected, got, "is this the checkpoint of another network?");
}

StateDict unwrapped(const StateDict& values) {
  StateDict result;
  for (const auto& [name, tensor] : values) result.emplace(without_module_prefix(name), tensor);
  return result;
}

void check_same_names_and_shapes(const StateDict& wanted, const StateDict& values,
                                 std::string_view origin) {
  for (const auto& [name, tensor] : wanted) {
    const auto found = values.find(name);
    if (found == values.end()) refuse(origin, fmt::format("a tensor {}", name), "none");
    if (found->second.sizes() != tensor.sizes()) {
      refuse(origin, fmt::format("{} of shape [{}]", name, shape_text(tensor)),
             fmt::format("[{}]", shape_text(found->second)));
    }
  }
  for (const auto& [name, tensor] : values) {
    if (!wanted.contains(name)) {
      refuse(origin, fmt::format("{} tensors", wanted.size()), fmt::format("also {}", name));
    }
  }
}

}  // namespace

StateDict state_dict(const torch::nn::Module& module) {
  StateDict result;
  for (const auto& item : module.named_parameters()) {
    result.emplace(item.key(), item.value().detach());
  }
  for (const auto& item : module.named_buffers()) result.emplace(item.key(), item.value());
  return result;
}

StateDict unwrapped_state_dict(const torch::nn::Module& module) {
  return unwrapped(state_dict(module));
}

std::function<void()> plan_load_state_dict(torch::nn::Module& module, const StateDict& values,
                                           std::string_view origin) {
  StateDict source = unwrapped(values);
  if (source.size() != values.size()) {
    refuse(origin, "every tensor once", "one with and one without the prefix module.");
  }
  StateDict target = unwrapped_state_dict(module);
  check_same_names_and_shapes(target, source, origin);
  return [target = std::move(target), source = std::move(source)] {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, tensor] : target) tensor.copy_(source.at(name));
  };
}

void load_state_dict(torch::nn::Module& module, const StateDict& values, std::string_view origin) {
  plan_load_state_dict(module, values, origin)();
}

void require_finite(const torch::nn::Module& module, const std::string& path) {
  for (const auto& parameter : module.named_parameters()) {
    const bool is_frozen = !parameter.value().requires_grad();  // as a mask of infinities may be
    if (is_frozen || parameter.value().isfinite().all().item<bool>()) continue;
    throw NumericError::of(path, "finite weights",
                           fmt::format("NaN or infinity in {}; nothing was saved",
                                       without_module_prefix(parameter.key())),
                           "use a smaller learning rate, and resume from an older checkpoint");
  }
}

std::string weights_sha256(const StateDict& values) {
  constexpr std::string_view kEnd("\0", 1);
  Sha256 hash;
  for (const auto& [name, tensor] : unwrapped(values)) {
    for (const auto& text : {name, safetensors_dtype(tensor.scalar_type()), shape_text(tensor)}) {
      hash.update(text);
      hash.update(kEnd);
    }
    const RowMajorBytes bytes(tensor);
    hash.update(bytes.span());
  }
  return hash.hex_digest();
}

std::string without_module_prefix(std::string_view name) {
  while (name.starts_with(kModulePrefix)) name.remove_prefix(kModulePrefix.size());
  return std::string(name);
}

}  // namespace ladder
