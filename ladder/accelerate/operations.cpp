// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/operations.h"

#include <fmt/core.h>

#include "ladder/comm/texts.h"
#include "ladder/core/error.h"
#include "ladder/core/tensor_form.h"

namespace ladder {

torch::Tensor gather_rows(const torch::Tensor& tensor, const ProcessGroup& group,
                          bool check_shapes) {
  if (check_shapes) require_same_shapes(tensor, /*rows_may_differ=*/true, "gather", group);
  if (group.world_size() == 1) return tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor;
  return torch::cat(group.all_gather(tensor.detach()));
}

torch::Tensor gather_samples(const torch::Tensor& tensor, const GradientState& gradients,
                             const ProcessGroup& group, bool check_shapes) {
  if (gradients.is_in_round()) {
    if (tensor.dim() == 0) {
      throw UsageError::malformed("gather_for_metrics", "rows, one per sample", "a scalar",
                                  "pass one value per sample, or use reduce");
    }
    const auto rows = gradients.repeats_batch() ? tensor.narrow(0, 0, 0) : tensor;
    return gather_rows(rows, group, check_shapes);
  }
  const EpochProgress* const pass = gradients.progress();
  if (pass == nullptr) {
    throw UsageError::conflict("gather_for_metrics", "no loop over a prepared loader is running",
                               "call it inside the loop, or use gather");
  }
  if (tensor.dim() == 0 || tensor.size(0) != pass->local_size) {
    throw UsageError::malformed(
        "gather_for_metrics", fmt::format("{} rows, one per sample", pass->local_size),
        tensor.dim() == 0 ? "a scalar" : fmt::format("{} rows", tensor.size(0)),
        "a mean over the batch includes repeated samples: pass one value per sample, or use "
        "reduce");
  }
  const auto all = gather_rows(tensor, group, check_shapes);
  return all.size(0) == pass->real_size() ? all : all.narrow(0, 0, pass->real_size());
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
  auto form =
      TensorForm::of_values(rows_may_differ && tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor);
  if (rows_may_differ) form.sizes->front() = TensorForm::kAnySize;
  require_agreement(group, operation, {form.text()},
                    "give every rank the same shape, or use pad_across_processes first");
}

}  // namespace ladder
