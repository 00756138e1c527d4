// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/inputs.h"

#include <fmt/format.h>

#include <algorithm>

#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr const char* kOnly = "x";  // the name of a single tensor

void require_name(std::string_view name) {
  if (!name.empty()) return;
  throw UsageError::malformed("Inputs", "a name for each tensor", "an empty name",
                              "name it as forward() of the model does");
}

}  // namespace

Inputs::Inputs(torch::Tensor only) { named_.emplace_back(kOnly, std::move(only)); }

Inputs::Inputs(std::initializer_list<Named> named) {
  for (const auto& [name, tensor] : named) {
    require_name(name);
    if (contains(name)) {
      throw UsageError::conflict("Inputs", fmt::format("the name {} occurs twice", name),
                                 "give every tensor a name of its own");
    }
    named_.emplace_back(name, tensor);
  }
}

const torch::Tensor& Inputs::only() const {
  if (named_.size() != 1) {
    throw UsageError::malformed("Inputs::only", "one tensor",
                                fmt::format("{} tensors", named_.size()),
                                "select one by its name: inputs.at(\"NAME\")");
  }
  return named_.front().second;
}

const torch::Tensor& Inputs::at(std::string_view name) const {
  for (const auto& [known, tensor] : named_) {
    if (known == name) return tensor;
  }
  std::vector<std::string> names;
  for (const auto& entry : named_) names.push_back(entry.first);
  throw UsageError::unknown_name("Inputs", name, names);
}

bool Inputs::contains(std::string_view name) const {
  return std::any_of(named_.begin(), named_.end(),
                     [&](const Named& entry) { return entry.first == name; });
}

void Inputs::set(std::string_view name, torch::Tensor tensor) {
  for (auto& [present, value] : named_) {
    if (present != name) continue;
    value = std::move(tensor);
    return;
  }
  require_name(name);
  named_.emplace_back(name, std::move(tensor));
}

const Inputs::Named& Inputs::first() const {
  if (named_.empty()) {
    throw UsageError::missing("Inputs", "at least one tensor", "set Batch::inputs");
  }
  return named_.front();
}

std::int64_t Inputs::rows() const {
  const auto& [first_name, front] = first();
  for (const auto& [name, tensor] : named_) {
    if (tensor.dim() > 0 && tensor.size(0) == front.size(0)) continue;
    throw UsageError::malformed(
        fmt::format("input {}", name),
        front.dim() == 0 ? "one row per sample"
                         : fmt::format("{} rows, as {} has", front.size(0), first_name),
        tensor.dim() == 0 ? "a scalar" : fmt::format("{} rows", tensor.size(0)),
        "give each tensor one row per sample");
  }
  return front.size(0);
}

Inputs Inputs::map(const std::function<torch::Tensor(const torch::Tensor&)>& change) const {
  Inputs changed;
  for (const auto& [name, tensor] : named_) changed.named_.emplace_back(name, change(tensor));
  return changed;
}

template <typename Cut>
std::vector<Inputs> Inputs::pieces(const Cut& cut) const {
  rows();
  std::vector<Inputs> result;
  for (const auto& [name, tensor] : named_) {
    const auto parts = cut(tensor);
    result.resize(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) result[i].named_.emplace_back(name, parts[i]);
  }
  return result;
}

std::vector<Inputs> Inputs::chunk(std::int64_t parts) const {
  return pieces([&](const torch::Tensor& tensor) { return tensor.chunk(parts); });
}

std::vector<Inputs> Inputs::split(std::int64_t size) const {
  if (rows() == 0) return {};
  return pieces([&](const torch::Tensor& tensor) { return tensor.split(size); });
}

}  // namespace ladder
