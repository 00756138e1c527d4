// SPDX-License-Identifier: Apache-2.0
#include "ladder/guest/adapt.h"

#include <fmt/format.h>

#include "ladder/core/error.h"

namespace ladder {

AdaptedModel::AdaptedModel(std::shared_ptr<torch::nn::Module> module, Forward forward)
    : forward_(std::move(forward)) {
  Model::train(mode_of(module.get()));  // before the child is registered: the wrapper alone
  module_ = register_module("module", std::move(module));
}

torch::Tensor AdaptedModel::refuse(const Inputs& inputs) {
  throw UsageError::conflict(
      "adapt",
      fmt::format("the module has no forward of {} tensors that returns a tensor", inputs.size()),
      "call the module's own forward, or pass one: ladder::adapt(net, [](auto& net, const "
      "ladder::Inputs& inputs) { return ...; })");
}

}  // namespace ladder
