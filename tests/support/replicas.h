// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <memory>

#include "ladder/comm/process_group.h"
#include "ladder/nn/model.h"
#include "ladder/parallel/distributed_data_parallel.h"

namespace ladder {

inline std::shared_ptr<DistributedDataParallel> wrapped(
    const std::shared_ptr<Model>& model, const ProcessGroup& group,
    const DistributedDataParallelOptions& options = {}) {
  return std::make_shared<DistributedDataParallel>(model, group, options);
}

// Whether all ranks have the same bits. Every rank returns the same.
inline bool equal_on_all_ranks(const torch::Tensor& tensor, const ProcessGroup& group) {
  const auto all = group.all_gather(tensor.cpu());
  return std::all_of(all.begin(), all.end(),
                     [&](const auto& other) { return torch::equal(other, all.front()); });
}

inline void expect_equal_on_all_ranks(const torch::Tensor& tensor, const ProcessGroup& group) {
  EXPECT_TRUE(equal_on_all_ranks(tensor, group));
}

}  // namespace ladder
