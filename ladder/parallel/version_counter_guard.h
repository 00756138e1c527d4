// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace ladder {

// Lets tensors be overwritten without autograd taking notice, as long as it lives.
//
// Autograd refuses a backward whose saved tensors were overwritten since. For the buffers of
// BatchNorm that is too strict: its backward does not read the running statistics in training.
// Without this, two forwards before one backward would fail. Python's DistributedDataParallel
// does the same for its buffers.
class VersionCounterGuard {
 public:
  explicit VersionCounterGuard(std::vector<torch::Tensor> tensors);
  ~VersionCounterGuard();
  VersionCounterGuard(const VersionCounterGuard&) = delete;
  VersionCounterGuard& operator=(const VersionCounterGuard&) = delete;

 private:
  std::vector<torch::Tensor> tensors_;
  std::vector<std::int64_t> versions_;
};

}  // namespace ladder
