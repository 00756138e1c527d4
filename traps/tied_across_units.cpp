// SPDX-License-Identifier: Apache-2.0
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

// An embedding, or the output layer with the same weights.
struct Product : Model {
  explicit Product(const torch::Tensor& weights) : weight(register_parameter("weight", weights)) {}
  torch::Tensor forward(const Inputs& inputs) override { return inputs.only().matmul(weight); }
  torch::Tensor weight;
};

struct Tied : Model {
  explicit Tied(bool is_tied) {
    const auto weights = torch::linspace(-0.5, 0.5, 8 * 8).view({8, 8});
    first = register_module("first", std::make_shared<Product>(weights));
    last = register_module(
        "last", std::make_shared<Product>(is_tied ? first->weight : weights.detach().clone()));
  }
  torch::Tensor forward(const Inputs& inputs) override {
    return (*last)(torch::tanh((*first)(inputs)));
  }
  std::shared_ptr<Product> first, last;
};

void train_some(Model& model, const char* side = "") {
  const auto inputs = torch::linspace(-1, 1, 4 * 8).view({4, 8});
  Recorder recorder(side, model);
  SGD optimizer(model.parameters(), {.lr = 0.01});
  for (int i = 0; i < 20; ++i) {
    optimizer.zero_grad();
    const auto loss = model.forward(inputs).square().sum();
    loss.backward();
    optimizer.step();
    recorder.step({.inputs = inputs, .positions = torch::arange(4)}, loss, model, &optimizer);
  }
  model.eval();  // makes all units whole
}

}  // namespace

void tied_across_units() {
  on_ranks(2, [](const ProcessGroup& group) {
    // Python's fully_shard makes two weights of one that two units share, without an error.
    const auto untied = std::make_shared<Tied>(false);
    FullyShardedDataParallel two(untied, group);
    train_some(two, "mistake");
    const double apart = distance(untied->last->weight, untied->first->weight);
    const auto tied = std::make_shared<Tied>(true);
    const auto error = error_of<UsageError>([&] { FullyShardedDataParallel(tied, group); });
    FullyShardedDataParallel one(tied, group, {.units = std::vector<std::string>{}});
    train_some(one, "guard");
    const auto replica = std::make_shared<Tied>(true);
    DistributedDataParallel replicated(replica, group);
    train_some(replicated);
    const double from_ddp = distance(tied->last->weight, replica->last->weight);
    require(apart > 0.01, "two weights stay equal");
    require(tied->first->weight.is_same(tied->last->weight), "the weights are no longer tied");
    require(from_ddp == 0.0, "one unit with both trains other weights");
    if (group.rank() != 0) return;
    mistake("distance between the two", distance_text(apart));
    guard("error", error);
    guard("one unit: from DDP", distance_text(from_ddp));
  });
}

}  // namespace ladder::traps
