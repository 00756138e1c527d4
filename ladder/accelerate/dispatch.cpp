// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/dispatch.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>

#include "ladder/comm/run_together.h"
#include "ladder/comm/texts.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr const char* kTargets = "";  // no input has an empty name
constexpr const char* kOneForm =
    "all batches need the form of the first: pad them to one length, or set dispatch_batches = "
    "false";

}  // namespace

Batch RemoteDataset::get_batch(std::span<const std::int64_t> /*indices*/) const {
  throw UsageError::conflict("Dataset::get_batch", "only the main process holds this data set",
                             "read it through a loader that Accelerator::prepare returned");
}

std::shared_ptr<const Dataset> dataset_of_main_process(
    const std::function<std::shared_ptr<const Dataset>()>& make, const ProcessGroup& group) {
  std::shared_ptr<const Dataset> dataset;
  on_rank_0(group, "load_dataset", [&] { dataset = make(); });
  auto size = torch::tensor(dataset == nullptr ? 0 : dataset->size(), torch::kInt64);
  group.broadcast(size);
  const auto description = broadcast_text(dataset == nullptr ? "" : dataset->description(), group);
  if (dataset != nullptr) return dataset;
  return std::make_shared<RemoteDataset>(size.item<std::int64_t>(), description);
}

ConcatBatchSampler::ConcatBatchSampler(std::vector<std::shared_ptr<const BatchSampler>> parts)
    : BatchSampler(*parts.front()), parts_(std::move(parts)) {}

std::vector<BatchIndices> ConcatBatchSampler::batches_of(std::int64_t epoch) const {
  auto joined = parts_.front()->batches_of(epoch);
  for (std::size_t rank = 1; rank < parts_.size(); ++rank) {
    const auto plans = parts_[rank]->batches_of(epoch);
    for (std::size_t batch = 0; batch < joined.size(); ++batch) {
      auto& whole = joined[batch];
      const auto& part = plans.at(batch);
      whole.indices.insert(whole.indices.end(), part.indices.begin(), part.indices.end());
      whole.positions.insert(whole.positions.end(), part.positions.begin(), part.positions.end());
    }
  }
  return joined;
}

BatchDispatcher::BatchDispatcher(const DataLoader& joined,
                                 const std::vector<std::shared_ptr<const BatchSampler>>& parts,
                                 ProcessGroup group, const torch::Device& device,
                                 std::int64_t first_batch)
    : group_(std::move(group)),
      device_(device),
      epoch_(joined.epoch()),
      next_(static_cast<std::size_t>(first_batch)) {
  for (const auto& part : parts) plans_.push_back(part->batches_of(epoch_));
  on_rank_0(group_, "the first batch", [&] { reader_.emplace(joined.begin_at(first_batch)); });
  if (next_ < plans_.front().size()) share_layout();
}

// Names, dtypes and shapes of the first batch. All batches share them, except the number of rows.
void BatchDispatcher::share_layout() {
  auto layout = nlohmann::json::array();
  const auto describe = [&](const std::string& name, const torch::Tensor& tensor) {
    layout.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().slice(1).vec()});
  };
  on_rank_0(group_, "the first batch", [&] {
    const Batch& batch = **reader_;
    for (const auto& [name, tensor] : batch.inputs) describe(name, tensor);
    if (batch.targets.defined()) describe(kTargets, batch.targets);
  });
  layout = nlohmann::json::parse(broadcast_text(layout.dump(), group_));
  for (const auto& tensor : layout) {
    auto sizes = tensor.at(2).get<std::vector<std::int64_t>>();
    sizes.insert(sizes.begin(), TensorForm::kAnySize);
    const auto dtype = static_cast<torch::ScalarType>(tensor.at(1).get<int>());
    layout_.emplace_back(tensor.at(0).get<std::string>(),
                         TensorForm{.dtype = dtype, .sizes = sizes});
  }
}

std::optional<Batch> BatchDispatcher::next() {
  if (next_ == plans_.front().size()) return std::nullopt;
  std::int64_t begin = 0;
  std::int64_t rows = 0;
  for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
    if (static_cast<int>(rank) == group_.rank()) begin = rows;
    rows += static_cast<std::int64_t>(plans_[rank][next_].indices.size());
  }
  const auto& plan = plans_[static_cast<std::size_t>(group_.rank())][next_++];
  const auto count = static_cast<std::int64_t>(plan.indices.size());
  Batch part = {.positions = torch::tensor(plan.positions, torch::kInt64),
                .indices = torch::tensor(plan.indices, torch::kInt64),
                .epoch = epoch_,
                .global_size = plan.global_size,
                .world_size = plan.world_size,
                .micro_batch = plan.micro_batch};
  for (auto& [name, form] : layout_) {
    form.sizes->front() = rows;
    torch::Tensor whole;
    if (!reader_) {
      whole = torch::empty(*form.sizes, torch::dtype(*form.dtype).device(device_));
    } else {
      const Batch& batch = **reader_;
      whole = (name == kTargets ? batch.targets : batch.inputs.at(name))
                  .to(device_, /*non_blocking=*/true)
                  .contiguous();
      const auto what = name == kTargets ? "the targets" : "input " + name;
      form.require(whole, "dispatch_batches: " + what, kOneForm);  // the other ranks expect it
    }
    group_.broadcast(whole);
    auto own = whole.narrow(0, begin, count);
    if (name == kTargets) {
      part.targets = own;
    } else {
      part.inputs.set(name, own);
    }
  }
  if (reader_) ++*reader_;
  return part;
}

}  // namespace ladder
