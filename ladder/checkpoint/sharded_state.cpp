// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/sharded_state.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <set>

#include "ladder/core/error.h"
#include "ladder/nn/model.h"
#include "ladder/optim/network_part.h"

namespace ladder {
namespace {

// The elements of a tensor in the memory order of the parameter.
torch::Tensor in_order_of(const ShardOfParameter& shard, const torch::Tensor& tensor) {
  if (tensor.sizes() != shard.sizes) return tensor.flatten();
  const auto laid_out = torch::empty_strided(shard.sizes, shard.strides, tensor.options());
  laid_out.copy_(tensor);
  return laid_out.as_strided({laid_out.numel()}, {1});
}

// All elements of a tensor of which each rank has a shard, perhaps of none.
torch::Tensor joined(const ShardOfParameter& shard, const std::vector<torch::Tensor>& pieces,
                     const std::string& name, const std::string& origin) {
  if (pieces[0].numel() == shard.numel()) return in_order_of(shard, pieces[0]);
  std::vector<torch::Tensor> rows;
  for (const auto& piece : pieces) rows.push_back(piece.flatten());
  auto all = torch::cat(rows);
  if (all.numel() == shard.numel()) return all;
  throw DataError::mismatch(
      origin, fmt::format("{} elements of {}", shard.numel(), name), std::to_string(all.numel()),
      "is this the state of another network, or are files of a rank missing?");
}

}  // namespace

bool is_sharded(const torch::nn::Module& module) {
  return std::ranges::any_of(module.parameters(),
                             [](const auto& parameter) { return shard_of(parameter) != nullptr; });
}

StateDict own_shards(const torch::nn::Module& module, const std::vector<StateDict>& saved,
                     const std::string& origin) {
  std::set<std::string> names;
  for (const auto& state : saved) {
    for (const auto& [name, tensor] : state) names.insert(name);
  }
  StateDict result = saved.at(0);
  const torch::NoGradGuard no_grad;
  for (const auto& item : unique_tensors(unwrapped(module).named_parameters())) {
    const auto* const shard = shard_of(item.tensor);
    if (shard == nullptr) continue;
    if (shard->is_whole && shard->count < shard->numel()) {
      throw UsageError::conflict(origin, "the network is whole on every rank",
                                 "call train() or reshard() of FullyShardedDataParallel before");
    }
    const auto& parameter = item.names.front();
    for (auto name = names.lower_bound(parameter); name != names.end(); ++name) {
      if (*name != parameter && !name->starts_with(parameter + ".")) {
        if (name->starts_with(parameter)) continue;
        break;
      }
      std::vector<torch::Tensor> pieces;
      for (const auto& state : saved) {
        const auto found = state.find(*name);
        if (found != state.end()) pieces.push_back(found->second);
      }
      if (shard->count == 0 && *name != parameter) {  // an optimizer has no state of nothing
        result.erase(*name);
      } else if (pieces[0].dim() == 0 && name->ends_with(".step")) {
        result[*name] = pieces[0];  // a count of steps
      } else if (saved.size() == 1 && pieces[0].sizes() == torch::IntArrayRef{shard->count}) {
        continue;  // this rank's own
      } else {
        const auto own =
            joined(*shard, pieces, *name, origin).narrow(0, shard->begin, shard->count);
        result[*name] = shard->is_whole ? own.as_strided(shard->sizes, shard->strides) : own;
      }
    }
  }
  return result;
}

}  // namespace ladder
