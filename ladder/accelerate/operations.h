// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ladder/accelerate/gradient_state.h"
#include "ladder/comm/process_group.h"

namespace ladder {

// Collectives over structures of tensors: one tensor, a vector, a map by name, a pair or tuple, or
// any nesting of these. Each returns the structure that it takes. All ranks pass the same
// structure; a map is read in the order of its keys.
//
// With `check_shapes`, tensors that do not fit together are a DistributedError on all ranks
// (require_same_shapes); without it the ranks may wait for each other.
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

// The rows of all ranks, concatenated in rank order, on every rank. Only the number of rows may
// differ between ranks. A scalar becomes a row.
torch::Tensor gather_rows(const torch::Tensor& tensor, const ProcessGroup& group,
                          bool check_shapes = false);

// The rows of the current batch, once each; see Accelerator::gather_for_metrics.
torch::Tensor gather_samples(const torch::Tensor& tensor, const GradientState& gradients,
                             const ProcessGroup& group, bool check_shapes = false);

// The sum or the mean over the ranks; a new tensor.
torch::Tensor reduced(const torch::Tensor& tensor, Reduction reduction, const ProcessGroup& group,
                      bool check_shapes = false);

// The tensor of rank `from`, as a new tensor. Shape and dtype are the same on all ranks.
torch::Tensor broadcasted(const torch::Tensor& tensor, int from, const ProcessGroup& group,
                          bool check_shapes = false);

struct PadOptions {
  std::int64_t dim = 0;    // the padded dimension; negative counts from the last
  double pad_index = 0.0;  // the padding value
  bool pad_first = false;  // pad before the values, not behind them
};

// Pads one dimension to its largest size on any rank. The other sizes are the same on all ranks.
torch::Tensor padded_across_ranks(const torch::Tensor& tensor, const PadOptions& options,
                                  const ProcessGroup& group, bool check_shapes = false);

// Throws DistributedError, naming `operation` and the shapes, unless all ranks have the same dtype
// and shape (with `rows_may_differ`, except the first size, "N"). Costs one small collective.
void require_same_shapes(const torch::Tensor& tensor, bool rows_may_differ,
                         std::string_view operation, const ProcessGroup& group);

// This rank's contiguous part of `items`; see Accelerator::split_between_processes.
template <typename Item>
std::vector<Item> part_of_rank(const std::vector<Item>& items, const ProcessGroup& group,
                               bool apply_padding) {
  const auto count = static_cast<std::int64_t>(items.size());
  const std::int64_t size = count / group.world_size();
  const std::int64_t longer = count % group.world_size();
  const std::int64_t rank = group.rank();
  const auto begin = items.begin() + rank * size + std::min(rank, longer);
  std::vector<Item> part(begin, begin + size + (rank < longer ? 1 : 0));
  if (apply_padding && longer != 0 && rank >= longer) part.push_back(items.back());
  return part;
}

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
