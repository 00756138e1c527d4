// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ladder/comm/process_group.h"

namespace ladder {

// Collectives over tensors that come in structures: one tensor, a vector, a map by name, a pair or
// tuple of them, or any nesting of these. Each function takes one and returns the same structure.
// All ranks give the same structure, in the same order; a map counts in the order of its keys.
//
// Python's counterpart: accelerate.utils.operations.

// Calls `change` on every tensor of a structure and returns the structure of the results.
template <typename Change>
torch::Tensor map_tensors(const torch::Tensor& tensor, const Change& change) {
  return change(tensor);
}
template <typename Item, typename Change>
std::vector<Item> map_tensors(const std::vector<Item>& items, const Change& change);
template <typename Key, typename Item, typename Change>
std::map<Key, Item> map_tensors(const std::map<Key, Item>& items, const Change& change);
template <typename First, typename Second, typename Change>
std::pair<First, Second> map_tensors(const std::pair<First, Second>& items, const Change& change);
template <typename... Items, typename Change>
std::tuple<Items...> map_tensors(const std::tuple<Items...>& items, const Change& change);

enum class Reduction { kSum, kMean };

// The rows of all ranks below each other, in rank order, on every rank. Ranks may have different
// numbers of rows, nothing else may differ. A scalar becomes a row.
torch::Tensor gather_rows(const torch::Tensor& tensor, const ProcessGroup& group);

// The sum over the ranks, or that divided by their number; a new tensor.
torch::Tensor reduced(const torch::Tensor& tensor, Reduction reduction, const ProcessGroup& group);

// The tensor of rank `from`; a new tensor. It has the same shape and dtype on all.
torch::Tensor broadcasted(const torch::Tensor& tensor, int from, const ProcessGroup& group);

struct PadOptions {
  std::int64_t dim = 0;    // to be made equal; negative counts from the last
  double pad_index = 0.0;  // what is filled in
  bool pad_first = false;  // before the values, instead of behind
};

// Fills up one dimension to its largest size on any rank. The other sizes are the same on all.
torch::Tensor padded_across_ranks(const torch::Tensor& tensor, const PadOptions& options,
                                  const ProcessGroup& group);

// The text of rank `from`, on every rank.
std::string broadcast_text(std::string text, const ProcessGroup& group, int from = 0);

// What ranks tell each other of a tensor: int64 [kShapeNumbers] with dtype, number of dimensions
// and sizes; the rest is 0. Throws UsageError for more than 16 dimensions.
constexpr std::int64_t kMostDimensions = 16;
constexpr std::int64_t kShapeNumbers = kMostDimensions + 2;
torch::Tensor shape_of(const torch::Tensor& tensor);

// Throws DistributedError, naming `operation` and the shapes, unless all ranks have the same dtype
// and shape; with `rows_may_differ`, all sizes but the first. Costs a small collective.
void require_same_shapes(const torch::Tensor& tensor, bool rows_may_differ,
                         std::string_view operation, const ProcessGroup& group);

// Runs `run` on this rank and waits until all ranks have run theirs. If it throws here, so does
// this; if it throws elsewhere, this throws a DistributedError that names the rank. So a rank that
// fails alone, at a full disk or a missing file, leaves nobody waiting for it.
void run_or_fail_together(const ProcessGroup& group, std::string_view operation,
                          const std::function<void()>& run);

template <typename Item, typename Change>
std::vector<Item> map_tensors(const std::vector<Item>& items, const Change& change) {
  std::vector<Item> results;
  for (const auto& item : items) results.push_back(map_tensors(item, change));
  return results;
}

template <typename Key, typename Item, typename Change>
std::map<Key, Item> map_tensors(const std::map<Key, Item>& items, const Change& change) {
  std::map<Key, Item> results;
  for (const auto& [key, item] : items) results.emplace(key, map_tensors(item, change));
  return results;
}

template <typename First, typename Second, typename Change>
std::pair<First, Second> map_tensors(const std::pair<First, Second>& items, const Change& change) {
  return {map_tensors(items.first, change), map_tensors(items.second, change)};
}

template <typename... Items, typename Change>
std::tuple<Items...> map_tensors(const std::tuple<Items...>& items, const Change& change) {
  // Braces: the calls run from left to right, in the same order on every rank.
  return std::apply(
      [&](const auto&... item) { return std::tuple<Items...>{map_tensors(item, change)...}; },
      items);
}

}  // namespace ladder
