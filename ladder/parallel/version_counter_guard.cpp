// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/version_counter_guard.h"

#include <utility>

namespace ladder {

VersionCounterGuard::VersionCounterGuard(std::vector<torch::Tensor> tensors)
    : tensors_(std::move(tensors)) {
  for (const auto& tensor : tensors_) versions_.push_back(tensor._version());
}

VersionCounterGuard::~VersionCounterGuard() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    auto counter = tensors_[i].unsafeGetTensorImpl()->version_counter();  // shared by copies
    counter.set_version(versions_[i]);
  }
}

}  // namespace ladder
