// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "ladder/data/dataset.h"

namespace ladder {

// A map-style data set of torch::data with a size, also with transforms, as a Dataset. It reads one
// batch at a time, because data sets of torch::data need not allow more; random transforms draw
// from PyTorch's generator.
//
//     auto images = MyImages(folder).map(torch::data::transforms::Normalize<>(0.5, 0.5));
//     DataLoader loader(std::make_shared<TorchDataset<decltype(images)>>(images), {...});
template <typename Inner>
class TorchDataset : public Dataset {
 public:
  explicit TorchDataset(Inner inner) : inner_(std::move(inner)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(inner_.size().value()); }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    const std::vector<std::size_t> numbers(indices.begin(), indices.end());
    const std::lock_guard lock(mutex_);
    return batch_of(inner_.get_batch(numbers));
  }

 private:
  // Stacked already.
  template <typename Example>
  static Batch batch_of(const Example& example) {
    Batch batch;
    batch.inputs = Inputs(example.data);
    if constexpr (requires { torch::Tensor(example.target); }) batch.targets = example.target;
    return batch;
  }
  template <typename Example>
  static Batch batch_of(const std::vector<Example>& examples) {
    std::vector<torch::Tensor> data;
    std::vector<torch::Tensor> targets;
    for (const auto& example : examples) {
      data.push_back(example.data);
      if constexpr (requires { torch::Tensor(example.target); }) targets.push_back(example.target);
    }
    Batch batch;
    batch.inputs = Inputs(torch::stack(data));
    if (!targets.empty()) batch.targets = torch::stack(targets);
    return batch;
  }

  mutable std::mutex mutex_;
  mutable Inner inner_;
};

}  // namespace ladder
