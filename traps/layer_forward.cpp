// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/optim/sgd.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/fully_sharded_data_parallel.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

struct Layer : Model {
  torch::Tensor forward(const Inputs& inputs) override { return torch::tanh(fc(inputs.only())); }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(8, 8));
};

struct Stack : Model {
  explicit Stack(bool calls) : calls_units(calls) {}
  torch::Tensor forward(const Inputs& inputs) override {
    const auto x = inputs.only();
    return calls_units ? (*layer1)((*layer0)(x)) : layer1->forward(layer0->forward(x));
  }
  bool calls_units;
  std::shared_ptr<Layer> layer0 = register_module("layer0", std::make_shared<Layer>());
  std::shared_ptr<Layer> layer1 = register_module("layer1", std::make_shared<Layer>());
};

// `calls`: its units as (*layer)(x).
std::shared_ptr<Model> stack(bool calls) {
  torch::manual_seed(1);
  return std::make_shared<Stack>(calls);
}

torch::Tensor inputs() { return torch::linspace(-1, 1, 4 * 8).view({4, 8}); }

// The weights after some steps.
torch::Tensor trained(Model& model) {
  SGD optimizer(model.parameters(), {.lr = 0.1});
  for (int i = 0; i < 5; ++i) {
    optimizer.zero_grad();
    model.forward(inputs()).square().sum().backward();
    optimizer.step();
  }
  model.eval();  // makes all units whole
  return flat_parameters(model);
}

}  // namespace

void layer_forward() {
  on_ranks(2, [](const ProcessGroup& group) {
    DistributedDataParallel replicated(stack(false), group);
    const auto expected = trained(replicated);
    FullyShardedDataParallel one_rank(stack(false), ProcessGroup::single());
    const double of_one = distance(trained(one_rank), expected);
    FullyShardedDataParallel wrong(stack(false), group);
    wrong.eval();
    const bool evaluates = wrong.forward(inputs()).sizes() == inputs().sizes();
    wrong.train();
    const auto error = error_of<UsageError>([&] { trained(wrong); });
    FullyShardedDataParallel right(stack(true), group);
    const double apart = distance(trained(right), expected);
    require(of_one == 0.0 && evaluates, "one rank, or an evaluation, shows the mistake");
    require(apart == 0.0, "called units train other weights");
    if (group.rank() != 0) return;
    mistake("one rank trains", "yes");
    mistake("two ranks evaluate", "yes");
    guard("error, two ranks train", error);
    guard("distance from DDP", distance_text(apart));
  });
}

}  // namespace ladder::traps
