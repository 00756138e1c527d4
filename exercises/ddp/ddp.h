// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "exercises/exercise.h"
#include "ladder/comm/process_group.h"

namespace ladder::exercises {

// Averages gradients over the ranks while backward computes them.
class Reducer {
 public:
  Reducer() = default;
  virtual ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Follows each backward. After it, the gradient of each parameter is the mean over the ranks.
  virtual void finish() = 0;
};

using Parameters = std::vector<torch::Tensor>;

struct Ddp {
  // Follows backward and replaces each gradient by the mean over the ranks.
  void (*average_gradients)(const Parameters& parameters, const ProcessGroup& group);

  // A Reducer. It sends its messages from hooks of the parameters, in buckets.
  std::unique_ptr<Reducer> (*make_reducer)(const Parameters& parameters, const ProcessGroup& group,
                                           std::int64_t bucket_bytes);
};

}  // namespace ladder::exercises
