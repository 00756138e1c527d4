// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "ladder/checkpoint/safetensors.h"

namespace ladder {

// An optimizer as a checkpoint sees it, of this library or of LibTorch.
class StatefulOptimizer {
 public:
  virtual ~StatefulOptimizer() = default;

  // The state, under the names that `module` gives to the parameters. LibTorch's optimizers have no
  // names: their parameters are numbered.
  virtual SafetensorsFile saved(const torch::nn::Module& module) const = 0;
  // Checks it, and returns the function that applies it, once, while the optimizer lives.
  [[nodiscard]] virtual std::function<void()> plan_load(const torch::nn::Module& module,
                                                        SafetensorsFile file,
                                                        const std::string& origin) = 0;
  // Before saved(), on all ranks: a collective if the state is divided among them.
  virtual void consolidate() {}
  // By parameter group; none of an optimizer of LibTorch.
  virtual nlohmann::json group_options() const { return nlohmann::json::array(); }
};

// For as long as the optimizer lives. Throws UsageError for an optimizer of another library if
// nothing adapts it.
std::unique_ptr<StatefulOptimizer> stateful(torch::optim::Optimizer& optimizer);

// Adapts optimizers of other libraries from here on; before main() (optimizer_archive.h). Returns
// true.
using AdaptOptimizer = std::unique_ptr<StatefulOptimizer> (*)(torch::optim::Optimizer& optimizer);
bool adapt_other_optimizers(AdaptOptimizer adapt);

}  // namespace ladder
