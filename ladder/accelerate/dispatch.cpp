// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/dispatch.h"

#include <torch/types.h>

#include "ladder/accelerate/operations.h"
#include "ladder/core/error.h"

namespace ladder {

Batch DistantDataset::get_batch(std::span<const std::int64_t> /*indices*/) const {
  throw UsageError::conflict("Dataset::get_batch", "only the main process holds this data set",
                             "walk it through a loader that Accelerator::prepare returned");
}

std::shared_ptr<const Dataset> dataset_of_main_process(
    const std::function<std::shared_ptr<const Dataset>()>& make, const ProcessGroup& group) {
  std::shared_ptr<const Dataset> dataset;
  run_on_all(group, "load_dataset", [&] {
    if (group.rank() == 0) dataset = make();
  });
  auto size = torch::tensor(dataset == nullptr ? 0 : dataset->size(), torch::kInt64);
  group.broadcast(size);
  const auto description = broadcast_text(dataset == nullptr ? "" : dataset->description(), group);
  if (dataset != nullptr) return dataset;
  return std::make_shared<DistantDataset>(size.item<std::int64_t>(), description);
}

JoinedBatchSampler::JoinedBatchSampler(std::vector<std::shared_ptr<const BatchSampler>> parts)
    : BatchSampler(*parts.front()), parts_(std::move(parts)) {}

std::vector<BatchPlan> JoinedBatchSampler::plan(std::int64_t epoch) const {
  auto joined = parts_.front()->plan(epoch);
  for (std::size_t rank = 1; rank < parts_.size(); ++rank) {
    const auto plans = parts_[rank]->plan(epoch);
    for (std::size_t batch = 0; batch < joined.size(); ++batch) {
      auto& whole = joined[batch];
      const auto& part = plans.at(batch);
      whole.indices.insert(whole.indices.end(), part.indices.begin(), part.indices.end());
      whole.positions.insert(whole.positions.end(), part.positions.begin(), part.positions.end());
    }
  }
  return joined;
}

DispatchedBatches::DispatchedBatches(const DataLoader& joined,
                                     const std::vector<std::shared_ptr<const BatchSampler>>& parts,
                                     ProcessGroup group, std::int64_t first_batch)
    : group_(std::move(group)),
      epoch_(joined.epoch()),
      next_(static_cast<std::size_t>(first_batch)) {
  for (const auto& part : parts) plans_.push_back(part->plan(epoch_));
  run_on_all(group_, "the first batch", [&] {
    if (group_.rank() == 0) reader_.emplace(joined.begin_at(first_batch));
  });
  if (next_ < plans_.front().size()) share_shape();
}

void DispatchedBatches::share_shape() {
  auto shape =
      reader_ ? shape_of((**reader_).images) : torch::zeros({kShapeNumbers}, torch::kInt64);
  group_.broadcast(shape);
  const auto* const numbers = shape.const_data_ptr<std::int64_t>();
  image_dtype_ = static_cast<torch::ScalarType>(numbers[0]);
  image_shape_.assign(numbers + 3, numbers + 2 + numbers[1]);  // without the size of the batch
}

std::optional<Batch> DispatchedBatches::next() {
  if (next_ == plans_.front().size()) return std::nullopt;
  std::int64_t begin = 0;
  std::int64_t rows = 0;
  for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
    if (static_cast<int>(rank) == group_.rank()) begin = rows;
    rows += static_cast<std::int64_t>(plans_[rank][next_].indices.size());
  }
  auto shape = image_shape_;
  shape.insert(shape.begin(), rows);
  auto images = reader_ ? (**reader_).images.contiguous() : torch::empty(shape, image_dtype_);
  auto labels = reader_ ? (**reader_).labels.contiguous() : torch::empty({rows}, torch::kInt64);
  group_.broadcast(images);
  group_.broadcast(labels);
  const auto& plan = plans_[static_cast<std::size_t>(group_.rank())][next_++];
  const auto count = static_cast<std::int64_t>(plan.indices.size());
  if (reader_) ++*reader_;
  return Batch{.images = images.narrow(0, begin, count),
               .labels = labels.narrow(0, begin, count),
               .positions = torch::tensor(plan.positions, torch::kInt64),
               .indices = torch::tensor(plan.indices, torch::kInt64),
               .epoch = epoch_,
               .global_size = plan.global_size,
               .world_size = plan.world_size};
}

}  // namespace ladder
