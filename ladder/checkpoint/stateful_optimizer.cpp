// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/stateful_optimizer.h"

#include <utility>

#include "ladder/checkpoint/optimizer_archive.h"
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

class OfLibTorch : public StatefulOptimizer {
 public:
  explicit OfLibTorch(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  SafetensorsFile saved(const torch::nn::Module& /*module*/) const override {
    return archive_of(optimizer_);
  }
  std::function<void()> plan_load(const torch::nn::Module& /*module*/, SafetensorsFile file,
                                  const std::string& origin) override {
    return plan_load_archive(optimizer_, file, origin);
  }

 private:
  torch::optim::Optimizer& optimizer_;
};

}  // namespace

std::unique_ptr<StatefulOptimizer> stateful(torch::optim::Optimizer& optimizer) {
  if (auto* const own = dynamic_cast<FusedOptimizer*>(&optimizer)) {
    return std::make_unique<OfThisLibrary>(*own);
  }
  return std::make_unique<OfLibTorch>(optimizer);
}

}  // namespace ladder
