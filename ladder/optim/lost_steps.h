// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace ladder {

// Warns once of steps that 16 bits cannot hold. A bfloat16 number has 8 significant bits: a step
// from 1.0 that is smaller than 0.002 ends at 1.0 again, however often it is repeated. Looks at
// some elements of each parameter in bfloat16 or float16, in the steps 1, 2, 4, 8 and so on: other
// parameters cost nothing, and a GPU is waited for in those steps alone.
class LostSteps {
 public:
  // Runs `step` of `optimizer`. `found_inf`: as GradScaling.
  void watch(const torch::optim::Optimizer& optimizer, const std::function<void()>& step,
             const std::optional<torch::Tensor>& found_inf = std::nullopt);

 private:
  std::uint64_t steps_ = 0;
  bool warned_ = false;
};

}  // namespace ladder
