// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/adam.h"

#include <memory>
#include <utility>

namespace ladder {
namespace {

using Group = GroupOptions<AdamOptions>;

}  // namespace

Adam::Adam(std::vector<torch::Tensor> parameters, AdamOptions options)
    : AdamBase(std::move(parameters), std::make_unique<Group>(options), "Adam",
               {options.lr, options.beta1, options.beta2, options.eps, options.weight_decay},
               WeightDecay::kInGradient) {}

Adam::Numbers Adam::numbers_of(const Options& options) const {
  const auto& values = static_cast<const Group&>(options).values;
  return {values.lr, values.beta1, values.beta2, values.eps, values.weight_decay};
}

std::unique_ptr<Adam::Options> Adam::options_with(const Numbers& numbers) const {
  return std::make_unique<Group>(AdamOptions{.lr = numbers.lr,
                                             .beta1 = numbers.beta1,
                                             .beta2 = numbers.beta2,
                                             .eps = numbers.eps,
                                             .weight_decay = numbers.weight_decay});
}

}  // namespace ladder
