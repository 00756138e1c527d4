// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "ladder/optim/fused_optimizer.h"

namespace ladder {

// Where a decay of the weights enters.
enum class WeightDecay {
  kInGradient,  // Adam: added to the gradient, so that it passes through both means
  kDecoupled    // AdamW: taken off the weight itself
};

// What Adam and AdamW share, which is all but the kernel that they call: two moving means for each
// weight, of the gradient and of its square, and a count of steps.
class AdamBase : public FusedOptimizer {
 protected:
  // The options of either, under one type.
  struct Numbers {
    double lr;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
  };

  // Throws UsageError when one of `numbers` is out of its range; `name` is the class.
  AdamBase(std::vector<torch::Tensor> parameters, std::unique_ptr<Options> options,
           std::string_view name, const Numbers& numbers, WeightDecay weight_decay);

  virtual Numbers numbers_of(const Options& options) const = 0;
  virtual std::unique_ptr<Options> options_with(const Numbers& numbers) const = 0;

 private:
  void step_group(const torch::optim::OptimizerParamGroup& group,
                  const GradScaling& scaling) override;
  nlohmann::json json_of(const Options& options) const override;
  std::unique_ptr<Options> options_from(const SavedOptions& saved) const override;
  std::unique_ptr<ParamState> new_state(const Options& options,
                                        const torch::Tensor& parameter) const override;
  StateDict tensors_of(const ParamState& state) const override;

  WeightDecay weight_decay_;
};

}  // namespace ladder
