// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/state_dict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/tensor_form.h"
#include "ladder/io/sha256.h"
#include "ladder/nn/model.h"

namespace ladder {
namespace {

constexpr std::string_view kModulePrefix = "module.";

struct DtypeName {
  torch::ScalarType dtype;
  std::string_view name;
};
constexpr DtypeName kDtypeNames[] = {
    {torch::kFloat32, "F32"},   {torch::kFloat64, "F64"}, {torch::kFloat16, "F16"},
    {torch::kBFloat16, "BF16"}, {torch::kInt64, "I64"},   {torch::kInt32, "I32"},
    {torch::kInt16, "I16"},     {torch::kInt8, "I8"},     {torch::kUInt64, "U64"},
    {torch::kUInt32, "U32"},    {torch::kUInt16, "U16"},  {torch::kUInt8, "U8"},
    {torch::kBool, "BOOL"}};

DataError mismatch(std::string_view origin, const std::string& expected, const std::string& got) {
  return DataError::mismatch(origin, expected, got, "is this the checkpoint of another network?");
}

// Python's names of the running statistics of all norm layers.
constexpr std::string_view kRunningMean = "running_mean";
constexpr std::string_view kRunningVar = "running_var";

std::vector<NamedTensor> named_tensors(const torch::nn::Module& module) {
  auto all = unwrapped(module).named_parameters();
  all.update(unwrapped(module).named_buffers());
  return unique_tensors(all);
}

// Whether require_finite looks at it.
bool must_be_finite(const NamedTensor& item) {
  const std::string_view name = item.names.front();
  return item.tensor.requires_grad() || name.ends_with(kRunningMean) || name.ends_with(kRunningVar);
}

// Of the values as `target` will hold them: a large float64 is infinite as float32.
void check_values(const NamedTensor& item, const torch::Tensor& value, std::string_view origin) {
  constexpr const char* kDamaged = "take an older checkpoint, or train again";
  require_own_elements("load_state_dict", item.names.front(), item.tensor);
  if (!must_be_finite(item)) return;
  const auto& name = item.names.front();
  const auto tensor = value.to(item.tensor.scalar_type());
  if (!all_finite(tensor)) {
    throw DataError::mismatch(origin, fmt::format("finite numbers in {}", name), "NaN or infinity",
                              kDamaged);
  }
  if (name.ends_with(kRunningVar) && tensor.lt(0).any().item<bool>()) {
    throw DataError::mismatch(origin, fmt::format("variances >= 0 in {}", name), "a negative one",
                              kDamaged);
  }
}

// Of a file whose names differ by a prefix alone, as torch.compile and a LightningModule add one.
DataError missing(const std::string& name, const StateDict& source, std::string_view origin) {
  const auto expected = "a tensor " + name;
  for (const auto& item : source) {
    if (!item.first.ends_with("." + name)) continue;
    const auto prefix = item.first.substr(0, item.first.size() - name.size());
    if (std::ranges::any_of(source,
                            [&](const auto& other) { return !other.first.starts_with(prefix); })) {
      continue;
    }
    return DataError::mismatch(origin, expected, "the prefix " + prefix + " before all names",
                               fmt::format("tools/convert_checkpoint.py {} stripped.safetensors "
                                           "--strip {}",
                                           origin, prefix));
  }
  return mismatch(origin, expected, "none");
}

// Moves the value of `item` out of `source`, under any of its names.
torch::Tensor take_value(const NamedTensor& item, StateDict& source, std::string_view origin) {
  std::string known;
  torch::Tensor value;
  for (const auto& name : item.names) {
    const auto found = source.extract(name);
    if (found.empty()) continue;
    if (value.defined() && !torch::equal(value, found.mapped())) {
      throw mismatch(origin,
                     fmt::format("equal values of {} and {}, which are one tensor", known, name),
                     "others");
    }
    known = name;
    value = found.mapped();
  }
  if (value.defined()) return value;
  throw missing(item.names.front(), source, origin);
}

// How often "module." begins every name.
std::size_t depth_of(const StateDict& values) {
  std::size_t depth = values.empty() ? 0 : std::string::npos;
  for (const auto& item : values) {
    std::string_view name = item.first;
    std::size_t own = 0;
    for (; name.starts_with(kModulePrefix); ++own) name.remove_prefix(kModulePrefix.size());
    depth = std::min(depth, own);
  }
  return depth;
}

// `values` with names in which "module." begins every name `depth` times at most.
StateDict cut_to_depth(const StateDict& values, std::size_t depth) {
  const std::size_t own = depth_of(values);
  const std::size_t surplus = (own - std::min(own, depth)) * kModulePrefix.size();
  StateDict result;
  for (const auto& [name, tensor] : values) result.emplace(name.substr(surplus), tensor);
  return result;
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
  StateDict result;
  for (const auto& item : named_tensors(module)) {
    result.emplace(item.names.front(), item.tensor.detach());
  }
  return result;
}

std::function<void()> plan_load_state_dict(torch::nn::Module& module, const StateDict& values,
                                           std::string_view origin) {
  StateDict source = cut_to_depth(values, depth_of(state_dict(unwrapped(module))));
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;  // target, source
  for (const auto& item : named_tensors(module)) {
    const auto& tensor = item.tensor;
    const auto value = take_value(item, source, origin);
    const auto expected = TensorForm::of_values(tensor);
    const auto got = TensorForm::of_values(value);
    const bool converts = tensor.is_floating_point() && value.is_floating_point();
    if (converts ? got.sizes != expected.sizes : got != expected) {
      throw mismatch(origin, item.names.front() + " as " + expected.text(), got.text());
    }
    check_values(item, value, origin);
    copies.emplace_back(tensor, value);
  }
  if (!source.empty()) {
    throw mismatch(origin, fmt::format("{} tensors", copies.size()),
                   fmt::format("also {}", source.begin()->first));
  }
  return [copies = std::move(copies)] {
    const torch::NoGradGuard no_grad;
    for (const auto& [tensor, value] : copies) tensor.copy_(value);
  };
}

void load_state_dict(torch::nn::Module& module, const StateDict& values, std::string_view origin) {
  plan_load_state_dict(module, values, origin)();
}

// The sum shows it in one pass, unless finite elements add up to infinity.
bool all_finite(const torch::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  if (!tensor.is_floating_point() || std::isfinite(tensor.sum().item<double>())) return true;
  return tensor.isfinite().all().item<bool>();
}

void require_finite(const torch::nn::Module& module, const std::string& path) {
  StateDict checked;
  for (const auto& item : named_tensors(module)) {
    if (must_be_finite(item)) checked.emplace(item.names.front(), item.tensor);
  }
  require_finite(checked, path);
}

void require_finite(const StateDict& tensors, const std::string& path) {
  for (const auto& [name, tensor] : tensors) {
    if (all_finite(tensor)) continue;
    throw NumericError::of(path, "finite weights",
                           fmt::format("NaN or infinity in {}; nothing was saved", name),
                           "use a smaller learning rate, and resume from an older checkpoint");
  }
}

std::string weights_sha256(const StateDict& values) {
  constexpr std::string_view kEnd("\0", 1);
  Sha256 hash;
  for (const auto& [name, tensor] : cut_to_depth(values, 0)) {
    const auto shape = fmt::format("{}", fmt::join(tensor.sizes(), ","));
    for (const auto& text : {name, safetensors_dtype(tensor.scalar_type()), shape}) {
      hash.update(text);
      hash.update(kEnd);
    }
    const RowMajorBytes bytes(tensor);
    hash.update(bytes.span());
  }
  return hash.hex_digest();
}

RowMajorBytes::RowMajorBytes(const torch::Tensor& tensor)
    : contiguous_(tensor.detach().cpu().contiguous()) {}

std::span<const std::byte> RowMajorBytes::span() const {
  return {static_cast<const std::byte*>(contiguous_.const_data_ptr()), contiguous_.nbytes()};
}

std::string tensor_digest(const torch::Tensor& tensor) {
  constexpr std::size_t kDigits = 16;
  return sha256_hex(RowMajorBytes(tensor).span()).substr(0, kDigits);
}

std::string safetensors_dtype(torch::ScalarType dtype) {
  for (const auto& [known, name] : kDtypeNames) {
    if (known == dtype) return std::string(name);
  }
  throw UsageError::conflict("safetensors", fmt::format("has no dtype {}", c10::toString(dtype)),
                             isComplexType(dtype)
                                 ? "register torch::view_as_real(tensor) in its place"
                                 : "convert the tensor with .to(torch::kFloat32) first");
}

torch::ScalarType dtype_of_safetensors(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& [dtype, known] : kDtypeNames) {
    if (known == name) return dtype;
    names.emplace_back(known);
  }
  throw UsageError::unknown_name("safetensors dtype", name, names);
}

}  // namespace ladder
