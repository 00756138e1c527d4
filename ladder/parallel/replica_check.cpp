// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/replica_check.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/checkpoint/state_dict.h"
#include "ladder/checkpoint/tensor_bytes.h"
#include "ladder/core/error.h"
#include "ladder/core/sha256.h"

namespace ladder {
namespace {

using Lines = std::vector<std::string>;  // one a tensor

std::string sha256_text(const std::string& text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex_digest();
}

torch::Tensor bytes_of(const std::string& text) {
  auto bytes = torch::empty({static_cast<std::int64_t>(text.size())}, torch::kUInt8);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<std::uint8_t>());
  return bytes;
}

std::string text_of(const torch::Tensor& bytes) {
  const auto contiguous = bytes.contiguous();
  const auto* first = contiguous.const_data_ptr<std::uint8_t>();
  return {first, first + contiguous.numel()};
}

std::vector<std::string> all_gather_text(const std::string& text, const ProcessGroup& group) {
  std::vector<std::string> texts;
  for (const auto& bytes : group.all_gather(bytes_of(text))) texts.push_back(text_of(bytes));
  return texts;
}

bool all_equal(const std::vector<std::string>& texts) {
  return std::all_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return text == texts.front(); });
}

Lines split(const std::string& text) {
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

[[noreturn]] void throw_first_difference(std::string_view what, std::string_view hint,
                                         const std::vector<std::string>& texts) {
  const auto odd = std::find_if(texts.begin(), texts.end(),
                                [&](const std::string& text) { return text != texts.front(); });
  const auto rank = odd - texts.begin();
  const Lines first = split(texts.front());
  const Lines other = split(*odd);
  const auto [a, b] = std::mismatch(first.begin(), first.end(), other.begin(), other.end());
  const std::string place = fmt::format("{}, tensor {}", what, a - first.begin() + 1);
  throw DistributedError::ranks_disagree(
      place, fmt::format("{}, as on rank 0", a == first.end() ? "nothing more" : *a),
      fmt::format("{} on rank {}", b == other.end() ? "nothing more" : *b, rank), hint);
}

void require_same_lines(std::string_view what, std::string_view hint, const Lines& lines,
                        const ProcessGroup& group) {
  const std::string text = fmt::format("{}\n", fmt::join(lines, "\n"));
  if (all_equal(all_gather_text(sha256_text(text), group))) return;
  throw_first_difference(what, hint, all_gather_text(text, group));
}

std::string describe(const std::string& name, const torch::Tensor& tensor, bool is_frozen) {
  return fmt::format("{} {}[{}]{}", name, torch::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "), is_frozen ? ", not trained" : "");
}

void require_equal_values(const StateDict& tensors, const ProcessGroup& group) {
  Lines lines;
  for (const auto& [name, tensor] : tensors) {
    lines.push_back(fmt::format("{} {}", name, tensor_digest(tensor)));
  }
  require_same_lines("replicas",
                     "a step was done on some ranks only; tools/first_difference finds it", lines,
                     group);
}

}  // namespace

void require_same_parameters(const torch::nn::Module& module, const ProcessGroup& group) {
  const auto parameters = module.named_parameters();
  Lines lines;
  for (const auto& [name, tensor] : state_dict(module)) {
    const auto* parameter = parameters.find(name);  // tensor itself is detached
    const bool is_frozen = parameter != nullptr && !parameter->requires_grad();
    lines.push_back(describe(name, tensor, is_frozen));
  }
  require_same_lines("model", "build the same network on every rank", lines, group);
}

void require_equal_replicas(const torch::nn::Module& module, const ProcessGroup& group) {
  require_equal_values(unwrapped_state_dict(module), group);
}

void require_equal_parameters(const torch::nn::Module& module, const ProcessGroup& group) {
  StateDict parameters;
  for (const auto& item : module.named_parameters()) {
    parameters.emplace(without_module_prefix(item.key()), item.value());
  }
  require_equal_values(parameters, group);
}

}  // namespace ladder
