// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/operations.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr std::int64_t kMostDimensions = 16;

// Dtype, number of dimensions, and sizes, padded with 0: int64 [kMostDimensions + 2].
torch::Tensor shape_of(const torch::Tensor& tensor) {
  if (tensor.dim() > kMostDimensions) {
    throw UsageError::out_of_range("a collective", tensor.dim(),
                                   fmt::format("at most {} dimensions", kMostDimensions),
                                   "flatten it first: tensor.flatten(0, 1)");
  }
  auto shape = torch::zeros({kMostDimensions + 2}, torch::kInt64);
  auto* const numbers = shape.mutable_data_ptr<std::int64_t>();
  numbers[0] = static_cast<std::int64_t>(tensor.scalar_type());
  numbers[1] = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), numbers + 2);
  return shape;
}

std::string text_of(const torch::Tensor& shape) {
  const auto* const numbers = shape.const_data_ptr<std::int64_t>();
  return fmt::format("{} [{}]", c10::toString(static_cast<torch::ScalarType>(numbers[0])),
                     fmt::join(numbers + 2, numbers + 2 + numbers[1], ", "));
}

}  // namespace

torch::Tensor gather_rows(const torch::Tensor& tensor, const ProcessGroup& group,
                          bool check_shapes) {
  if (check_shapes) require_same_shapes(tensor, /*rows_may_differ=*/true, "gather", group);
  if (group.world_size() == 1) return tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor;
  return torch::cat(group.all_gather(tensor.detach()));
}

torch::Tensor reduced(const torch::Tensor& tensor, Reduction reduction, const ProcessGroup& group,
                      bool check_shapes) {
  if (check_shapes) require_same_shapes(tensor, /*rows_may_differ=*/false, "reduce", group);
  auto sum = tensor.detach().clone();
  group.all_reduce(sum);
  return reduction == Reduction::kSum ? sum : sum / group.world_size();
}

torch::Tensor broadcasted(const torch::Tensor& tensor, int from, const ProcessGroup& group,
                          bool check_shapes) {
  if (check_shapes) require_same_shapes(tensor, /*rows_may_differ=*/false, "broadcast", group);
  auto copy = tensor.detach().clone();
  group.broadcast(copy, from);
  return copy;
}

torch::Tensor padded_across_ranks(const torch::Tensor& tensor, const PadOptions& options,
                                  const ProcessGroup& group, bool check_shapes) {
  const auto dim = options.dim < 0 ? options.dim + tensor.dim() : options.dim;
  if (dim < 0 || dim >= tensor.dim()) {
    throw UsageError::out_of_range("pad_across_processes", options.dim,
                                   fmt::format("a dimension of a tensor with {}", tensor.dim()),
                                   "dimensions count from 0, or from -1 at the end");
  }
  if (check_shapes) {
    require_same_shapes(tensor.transpose(0, dim), /*rows_may_differ=*/true, "pad_across_processes",
                        group);
  }
  auto longest = torch::tensor(tensor.size(dim), torch::kInt64);
  group.all_reduce(longest, ReduceOp::kMax);
  auto sizes = tensor.sizes().vec();
  const auto own = sizes[static_cast<std::size_t>(dim)];
  const auto all = longest.item<std::int64_t>();
  if (own == all) return tensor;
  sizes[static_cast<std::size_t>(dim)] = all;
  auto result = torch::full(sizes, options.pad_index, tensor.options());
  result.narrow(dim, options.pad_first ? all - own : 0, own).copy_(tensor.detach());
  return result;
}

void require_same_shapes(const torch::Tensor& tensor, bool rows_may_differ,
                         std::string_view operation, const ProcessGroup& group) {
  const auto own = rows_may_differ && tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor;
  const auto shapes = group.all_gather_into_tensor(shape_of(own)).unbind(0);
  constexpr std::int64_t kRows = 2;
  for (std::size_t rank = 1; rank < shapes.size(); ++rank) {
    auto other = shapes[rank].clone();
    if (rows_may_differ) other[kRows] = shapes[0][kRows];
    if (torch::equal(other, shapes[0])) continue;
    throw DistributedError::ranks_disagree(
        operation, fmt::format("the tensor of rank 0, {}", text_of(shapes[0])),
        fmt::format("{} on rank {}", text_of(shapes[rank]), rank),
        "give every rank the same shape, or use pad_across_processes first");
  }
}

}  // namespace ladder
