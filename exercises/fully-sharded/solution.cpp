// SPDX-License-Identifier: Apache-2.0
// Exercise 15: layers whose weights, gradients and optimizer state are divided among the ranks.
#include "exercises/fully-sharded/fully-sharded.h"

namespace {

using namespace ladder;
using namespace ladder::exercises;

// Keeps the shard of this rank; `weights`, [size], are equal on all ranks.
Unit shard(const torch::Tensor& weights, const ProcessGroup& group) {
  // solution
  const std::int64_t ranks = group.world_size();
  const std::int64_t share = (weights.numel() + ranks - 1) / ranks;
  const auto padded = torch::zeros({ranks, share});
  padded.flatten().narrow(0, 0, weights.numel()).copy_(weights);
  Unit unit;
  unit.size = weights.numel();
  unit.shard = padded[group.rank()].clone();
  unit.optimizer = std::make_unique<AdamPart>(share);
  unit.whole = std::make_unique<WholeWeights>(ranks * share);
  return unit;
  // end
}

// Makes a layer whole. Returns its weights, [size], whose gradients go to unit.whole.
torch::Tensor unshard(Unit& unit, const ProcessGroup& group) {
  // solution
  unit.whole->allocate();
  auto values = unit.whole->values();
  group.all_gather_into_tensor(values, unit.shard);
  return unit.whole->weights().narrow(0, 0, unit.size);
  // end
}

// Follows the backward of a layer: turns its gradients into unit.gradient.
void reduce_gradient(Unit& unit, const ProcessGroup& group) {
  // solution
  auto& gradient = unit.whole->weights().mutable_grad();
  const auto rows = (gradient * (1.0 / group.world_size())).view({group.world_size(), -1});
  unit.gradient = group.reduce_scatter(rows);
  gradient.reset();
  // end
}

// Forward, backward and step of all layers.
void train_step(std::vector<Unit>& units, const Network& network, const torch::Tensor& inputs,
                const ProcessGroup& group) {
  // solution
  std::vector<torch::Tensor> xs;  // the input of each layer, and of the loss
  std::vector<torch::Tensor> outputs;
  xs.push_back(inputs);
  for (auto& unit : units) {
    outputs.push_back(network.layer(unshard(unit, group), xs.back()));
    unit.whole->release();
    xs.push_back(outputs.back().detach().requires_grad_());
  }
  network.loss(xs.back()).backward();
  for (std::size_t i = units.size(); i-- > 0;) {
    unshard(units[i], group);
    outputs[i].backward(xs[i + 1].grad());
    units[i].whole->release();
    reduce_gradient(units[i], group);
  }
  for (auto& unit : units) unit.optimizer->step(unit.shard, unit.gradient);
  // end
}

const Submission submission(FullySharded{shard, unshard, reduce_gradient, train_step});

}  // namespace
