// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace ladder {

// Hides writes to tensors from autograd while it lives.
//
// Autograd refuses a backward whose saved tensors were overwritten. For the buffers of BatchNorm
// that is too strict: its backward does not read the running statistics in training. Without this
// guard, two forwards before one backward would fail. Python's DistributedDataParallel does the
// same for its buffers.
class VersionCounterGuard {
 public:
  explicit VersionCounterGuard(std::vector<torch::Tensor> tensors) : tensors_(std::move(tensors)) {
    for (const auto& tensor : tensors_) versions_.push_back(tensor._version());
  }
  ~VersionCounterGuard() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      auto counter = tensors_[i].unsafeGetTensorImpl()->version_counter();  // shared by copies
      counter.set_version(versions_[i]);
    }
  }
  VersionCounterGuard(const VersionCounterGuard&) = delete;
  VersionCounterGuard& operator=(const VersionCounterGuard&) = delete;

 private:
  std::vector<torch::Tensor> tensors_;
  std::vector<std::int64_t> versions_;
};

}  // namespace ladder
