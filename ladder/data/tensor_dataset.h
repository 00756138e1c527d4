// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <utility>

#include "ladder/data/dataset.h"

namespace ladder {

// Samples in memory: one row per sample in each tensor.
//
//     DataLoader loader(std::make_shared<TensorDataset>(images, labels), {.batch_size = 64});
//
// Python's counterpart: torch.utils.data.TensorDataset.
class TensorDataset : public Dataset {
 public:
  // `targets` may be undefined. Throws UsageError if the tensors differ in their number of rows.
  explicit TensorDataset(Inputs inputs, torch::Tensor targets = {})
      : inputs_(std::move(inputs)), targets_(std::move(targets)), size_(inputs_.rows()) {
    if (targets_.defined()) {
      static_cast<void>(Inputs{{"inputs", inputs_.begin()->second}, {"targets", targets_}}.rows());
    }
  }

  std::int64_t size() const override { return size_; }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto rows = torch::tensor(at::IntArrayRef(indices.data(), indices.size()), torch::kInt64);
    const auto select = [&](const torch::Tensor& all) {
      return all.defined() ? all.index_select(0, rows.to(all.device())) : all;
    };
    Batch batch;
    batch.inputs = inputs_.map(select);
    batch.targets = select(targets_);
    return batch;
  }

 private:
  Inputs inputs_;
  torch::Tensor targets_;
  std::int64_t size_;
};

}  // namespace ladder
