// SPDX-License-Identifier: Apache-2.0
#include "exercises/memory/memory.h"

#include <fmt/format.h>
#include <torch/utils.h>

#include <cmath>
#include <memory>
#include <string>

#include "exercises/grader/grader.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/fully_sharded_data_parallel.h"
#include "ladder/parallel/zero_redundancy_optimizer.h"
#include "tests/support/training.h"

namespace ladder::exercises::memory {
namespace {

// The network `stack` of lesson 9, with a number of layers that is another one in each check.
const Recipe& stack() {
  static const Recipe recipe(
      {.name = "stack", .depth = 2 + static_cast<std::int64_t>(fresh_seed() % 4)});
  return recipe;
}

std::int64_t bytes_of(const std::vector<torch::Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

// The weights of each unit, as the library divides them.
std::vector<std::int64_t> units_of(const FullyShardedDataParallel& model) {
  std::vector<std::int64_t> units;
  for (const auto& unit : model.units()) units.push_back(unit.whole);
  return units;
}

// A step of the library. What AdamW keeps is counted where it is divided, else twice the weights.
RankBytes measured(Division division, const ProcessGroup& group,
                   const std::shared_ptr<FullyShardedDataParallel>& sharded) {
  const std::shared_ptr<Model> model =
      division == Division::kAll
          ? std::static_pointer_cast<Model>(sharded)
          : std::make_shared<DistributedDataParallel>(first_model(stack()), group);
  const auto optimizer = stack().make_optimizer(model->parameters());
  std::unique_ptr<ZeroRedundancyOptimizer> zero;
  if (division == Division::kOptimizerState) {
    zero = std::make_unique<ZeroRedundancyOptimizer>(*optimizer, group);
  }
  run_backward(*model, stack(), slice_of(random_batch(8), group.rank(), group.world_size()));
  optimizer->step();
  RankBytes bytes{.weights = bytes_of(model->parameters())};
  for (const auto& parameter : model->parameters()) {
    const auto& gradient = parameter.grad();  // none for a part without elements
    if (gradient.defined()) bytes.gradients += static_cast<std::int64_t>(gradient.nbytes());
  }
  bytes.state = zero ? zero->state_bytes() : 2 * bytes.weights;
  const auto whole = bytes_of(first_model(stack())->parameters());
  const auto pass = whole / group.world_size() * (group.world_size() - 1);
  bytes.sent = (division == Division::kNothing ? 2 : 3) * pass;
  return bytes;
}

bool near(double got, double expected) { return std::abs(got - expected) <= 0.01 * expected; }

std::string meaning_of_weights(double ratio, Division division, double n) {
  if (division == Division::kAll) {
    return near(ratio, n) ? "a rank keeps its shard of the weights alone, between the steps"
                          : "a rank keeps 1 ÷ N of the weights";
  }
  if (near(ratio, 1 / n)) {
    return division == Division::kNothing ? "nothing is divided: each rank has all weights"
                                          : "the weights stay whole with ZeRO-1";
  }
  if (near(ratio, n)) return "of all ranks together: the question is one rank";
  if (near(ratio, 0.25)) return "numbers of weights, not bytes: a float32 has 4";
  if (near(ratio, 8)) return "bits: a byte has 8 of them";
  return near(ratio, 2) ? "a float32 has 4 bytes, not 8" : "some units are not counted";
}

std::string meaning_of_gradients(double ratio, Division division, double n) {
  if (division == Division::kAll) {
    return near(ratio, n)
               ? "a rank keeps its shard of the gradients alone, after the reduce-scatter"
               : "one gradient per weight of the shard";
  }
  if (division == Division::kOptimizerState && near(ratio, 1 / n)) {
    return "the gradients stay whole with ZeRO-1: they are averaged by an all-reduce";
  }
  return "one gradient per weight, a float32 as well";
}

std::string meaning_of_state(double ratio, Division division, double n) {
  if (near(ratio, 0.5)) return "AdamW keeps two numbers per weight: a mean and a mean of squares";
  if (near(ratio, 1.5)) return "the gradients are no part of the state";
  if (division == Division::kNothing) return "two float32 numbers per weight";
  return near(ratio, n) ? division == Division::kAll
                              ? "the state is that of the shard alone"
                              : "ZeRO-1 divides the state: a rank has that of its part"
                        : "two float32 numbers for each weight that the rank steps";
}

std::string meaning_of_sent(double ratio, Division division, double n) {
  if (ratio == 0) return "an integer division: in C++ `3 / 4` is 0, so multiply first";
  if (near(ratio, n / (n - 1))) return "N for N - 1: a rank sends N - 1 parts, and keeps its own";
  if (near(ratio, n))
    return "all bytes to each of the N - 1 others: a pass sends parts of size ÷ N";
  if (division == Division::kNothing) {
    return near(ratio, 0.5) ? "one pass of two: an all-reduce is a reduce-scatter and an all-gather"
                            : "two passes, in each of which a rank sends N - 1 parts of size ÷ N";
  }
  if (near(ratio, 4.0 / 3)) {
    return "a pass too many: in an all-reduce the gradients return, which a reduce-scatter saves";
  }
  if (!near(ratio, 2.0 / 3)) return "three passes, in each of which a rank sends N - 1 parts";
  return division == Division::kAll
             ? "a pass is missing: weights are gathered for forward and for backward"
             : "a pass is missing: the new weights of each part go to the other ranks";
}

void compare(const Memory& yours, Division division, const ProcessGroup& group) {
  const auto sharded = std::make_shared<FullyShardedDataParallel>(first_model(stack()), group);
  const auto expected = measured(division, group, sharded);
  const auto got = yours.bytes_per_rank(division, units_of(*sharded), group.world_size());
  using Meaning = std::string (*)(double ratio, Division division, double n);
  const auto require = [&](const std::string& what, std::int64_t has, std::int64_t needs,
                           Meaning meaning) {
    const auto wanted = static_cast<double>(needs);
    expect(
        near(static_cast<double>(has), wanted),
        fmt::format("{} ranks: {:.2f} MB of {} per rank", group.world_size(), wanted / 1e6, what),
        fmt::format("{:.2f} MB", static_cast<double>(has) / 1e6),
        meaning(static_cast<double>(has) / wanted, division, group.world_size()));
    result(torch::tensor(wanted * std::round(static_cast<double>(has) / wanted)));
  };
  require("weights", got.weights, expected.weights, meaning_of_weights);
  require("gradients", got.gradients, expected.gradients, meaning_of_gradients);
  require("state of AdamW", got.state, expected.state, meaning_of_state);
  require("messages in a step", got.sent, expected.sent, meaning_of_sent);
}

void grade(Grader& grader, const Memory& yours) {
  using Named = std::pair<const char*, Division>;
  for (const auto& [name, division] : {Named{"DistributedDataParallel", Division::kNothing},
                                       {"ZeRO-1", Division::kOptimizerState},
                                       {"fully sharded", Division::kAll}}) {
    for (const int ranks : {3, 4, 2}) {
      grader.property(
          fmt::format("{}: the bytes of each of {} ranks", name, ranks), ranks,
          [&yours, division = division](const ProcessGroup& group) {
            compare(yours, division, group);
          },
          /*seconds=*/30);
    }
  }
}

const Graded<Memory> graded("memory", grade);

}  // namespace
}  // namespace ladder::exercises::memory
