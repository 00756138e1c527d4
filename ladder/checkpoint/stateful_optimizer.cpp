// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/stateful_optimizer.h"

#include <utility>

#include "ladder/core/error.h"
#include "ladder/optim/fused_optimizer.h"

namespace ladder {
namespace {

class OfThisLibrary : public StatefulOptimizer {
 public:
  explicit OfThisLibrary(FusedOptimizer& optimizer) : optimizer_(optimizer) {}

  SafetensorsFile saved(const torch::nn::Module& module) const override {
    return to_safetensors(optimizer_.state_dict(module));
  }
  std::function<void()> plan_load(const torch::nn::Module& module, SafetensorsFile file,
                                  const std::string& origin) override {
    return optimizer_.plan_load(module, optimizer_state_from(std::move(file), origin), origin);
  }
  void consolidate() override { optimizer_.consolidate_state_dict(); }
  nlohmann::json group_options() const override { return optimizer_.group_options(); }

 private:
  FusedOptimizer& optimizer_;
};

AdaptOptimizer& adapter() {
  static AdaptOptimizer present = nullptr;
  return present;
}

}  // namespace

std::unique_ptr<StatefulOptimizer> stateful(torch::optim::Optimizer& optimizer) {
  if (auto* const own = dynamic_cast<FusedOptimizer*>(&optimizer)) {
    return std::make_unique<OfThisLibrary>(*own);
  }
  if (adapter() != nullptr) return adapter()(optimizer);
  throw UsageError::conflict("checkpoint", "an optimizer that is not of this library",
                             "use ladder::AdamW or ladder::SGD, or link ladder::ladder");
}

bool adapt_other_optimizers(AdaptOptimizer adapt) {
  adapter() = adapt;
  return true;
}

}  // namespace ladder
