// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/zero_redundancy_optimizer.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/optim/adagrad.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/rmsprop.h"
#include "ladder/optim/sgd.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/small_modules.h"

namespace ladder {
namespace {

// Sizes that no number of ranks divides; one parameter in another order of memory, one that stays
// without a gradient, one of a single number.
struct Network : IdleModel {
  Network() {
    register_parameter("large", numbers({70, 31}));
    register_parameter("channels_last",
                       numbers({3, 5, 4, 2}).contiguous(torch::MemoryFormat::ChannelsLast));
    register_parameter("unused", numbers({40}));
    register_parameter("bias", numbers({7}));
    register_parameter("scale", torch::tensor(2.0F));
  }
  static torch::Tensor numbers(const std::vector<std::int64_t>& sizes) {
    std::int64_t count = 1;
    for (const auto size : sizes) count *= size;
    return torch::arange(count, torch::kFloat32).sin().view(sizes);
  }
};

using Optimizer = std::unique_ptr<FusedOptimizer>;
using Make = std::function<Optimizer(std::vector<torch::Tensor>)>;

// Two groups: the biases have options of their own.
template <typename Class, typename Options>
Make two_groups(Options options, Options of_biases) {
  return [=](std::vector<torch::Tensor> parameters) -> Optimizer {
    const std::vector<torch::Tensor> biases(parameters.end() - 2, parameters.end());
    parameters.resize(parameters.size() - 2);
    auto optimizer = std::make_unique<Class>(parameters, options);
    optimizer->add_param_group(parameter_group(biases, of_biases));
    return optimizer;
  };
}

struct Kind {
  std::string name;
  Make make;
};

const std::vector<Kind> kKinds = {
    {"AdamW", two_groups<AdamW>(AdamWOptions{.weight_decay = 0.1}, AdamWOptions{.lr = 0.1})},
    {"Adam", two_groups<Adam>(AdamOptions{}, AdamOptions{.weight_decay = 0.2})},
    {"SGD", two_groups<SGD>(SgdOptions{.lr = 0.1, .momentum = 0.9}, SgdOptions{.lr = 0.2})},
    {"Adagrad", two_groups<Adagrad>(AdagradOptions{}, AdagradOptions{.lr = 0.2})},
    {"RMSprop", two_groups<RMSprop>(RMSpropOptions{}, RMSpropOptions{.momentum = 0.5})}};

void step(Network& network, FusedOptimizer& optimizer, int seed, const GradScaling& scaling = {}) {
  for (auto& item : network.named_parameters()) {
    if (item.key() == "unused") continue;
    const auto& parameter = item.value();
    parameter.mutable_grad() =
        (torch::arange(parameter.numel(), torch::kFloat32) + seed).cos().view(parameter.sizes());
  }
  optimizer.step_scaled(scaling);
}

void expect_equal(const Network& got, const Network& expected) {
  const auto others = expected.named_parameters();
  for (const auto& item : got.named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), others[item.key()])) << item.key();
  }
}

void expect_equal(const OptimizerState& got, const OptimizerState& expected) {
  EXPECT_EQ(got.groups, expected.groups);
  EXPECT_EQ(got.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    ASSERT_TRUE(got.tensors.contains(name)) << name;
    EXPECT_TRUE(torch::equal(got.tensors.at(name), tensor)) << name;
  }
}

class Zero : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Zero, testing::Values(1, 2, 3));

// Each rank has the undivided optimizer beside it.
TEST_P(Zero, HasTheWeightsAndTheStateOfTheUndividedOptimizer) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    for (const auto& kind : kKinds) {
      SCOPED_TRACE(kind.name);
      Network whole;
      const auto undivided = kind.make(whole.parameters());
      Network network;
      const auto optimizer = kind.make(network.parameters());
      const ZeroRedundancyOptimizer zero(*optimizer, group);
      expect_equal(network, whole);
      const auto step_both = [&](int seed, const GradScaling& scaling = {}) {
        step(whole, *undivided, seed, scaling);
        step(network, *optimizer, seed, scaling);
        expect_equal(network, whole);
      };
      step_both(1);
      optimizer->param_groups()[0].options().set_lr(0.01);  // as a schedule does
      undivided->param_groups()[0].options().set_lr(0.01);
      step_both(2, {.grad_scale = torch::tensor(4.0F), .found_inf = torch::tensor(0.0F)});
      step_both(3, {.grad_scale = torch::tensor(4.0F), .found_inf = torch::tensor(1.0F)});

      EXPECT_ERROR(optimizer->state_dict(network), UsageError,
                   "call optimizer.consolidate_state_d");
      optimizer->consolidate_state_dict();
      if (group.rank() == 0) {
        expect_equal(optimizer->state_dict(network), undivided->state_dict(whole));
      } else {
        EXPECT_THROW(optimizer->state_dict(network), UsageError);
      }
      step_both(4);
      EXPECT_THROW(optimizer->state_dict(network), UsageError) << "the state is divided again";
    }
  });
}

TEST_P(Zero, KeepsItsPartOfAStateThatItLoads) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    for (const auto& kind : kKinds) {
      SCOPED_TRACE(kind.name);
      Network whole;
      const auto undivided = kind.make(whole.parameters());
      step(whole, *undivided, 1);
      Network network;
      const auto optimizer = kind.make(network.parameters());
      const ZeroRedundancyOptimizer zero(*optimizer, group);
      const torch::NoGradGuard no_grad;
      for (auto& item : network.named_parameters()) {
        item.value().copy_(whole.named_parameters()[item.key()]);
      }
      optimizer->load_state_dict(network, undivided->state_dict(whole), "test");
      step(whole, *undivided, 2);
      step(network, *optimizer, 2);
      expect_equal(network, whole);
      optimizer->consolidate_state_dict();
      if (group.rank() != 0) continue;
      expect_equal(optimizer->state_dict(network), undivided->state_dict(whole));
    }
  });
}

TEST_P(Zero, DividesTheBytesOfTheStateEqually) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    Network network;
    AdamW optimizer(network.parameters());
    const ZeroRedundancyOptimizer zero(optimizer, group);
    EXPECT_EQ(zero.state_bytes(), 0);
    step(network, optimizer, 1);
    const std::int64_t elements = 70 * 31 + 3 * 5 * 4 * 2 + 7 + 1;  // with a gradient
    const auto own = zero.state_bytes();
    const std::int64_t rounding = 8 * 64 * 5;
    EXPECT_NEAR(static_cast<double>(own), 8.0 * elements / group.world_size(), rounding);
    auto sum = torch::tensor(own);
    group.all_reduce(sum);
    const std::int64_t counts = 4 * (4 + group.world_size() - 1);  // of steps, one per part
    EXPECT_LE(sum.item<std::int64_t>(), 8 * elements + counts);
  });
}

TEST_ALONE(ZeroRedundancyOptimizer, RefusesWhatItCannotDivide) {
  const auto group = ProcessGroup::single();
  Network network;
  torch::optim::SGD foreign(network.parameters(), torch::optim::SGDOptions(0.1));
  EXPECT_ERROR(ZeroRedundancyOptimizer(foreign, group), UsageError, "use ladder::AdamW");
  AdamW mixed({torch::zeros({2}), torch::zeros({2}, torch::kFloat64)});
  EXPECT_ERROR(ZeroRedundancyOptimizer(mixed, group), UsageError, "expected Float on cpu, got ");
  AdamW stepped(network.parameters());
  step(network, stepped, 1);
  EXPECT_ERROR(ZeroRedundancyOptimizer(stepped, group), UsageError, "before the first step");
  Network other;
  AdamW twice(other.parameters());
  const ZeroRedundancyOptimizer first(twice, group);
  EXPECT_ERROR(ZeroRedundancyOptimizer(twice, group), UsageError, "before the first step");
  EXPECT_ERROR(twice.add_param_group(parameter_group({torch::zeros({2})}, AdamWOptions{})),
               UsageError, "optimizer: a parameter group after the state was divided; hint: ");
  other.parameters().back().set_data(torch::tensor(2.0F));  // as Module::to does
  EXPECT_ERROR(step(other, twice, 1), UsageError, "has moved to other memory");
}

TEST(ZeroRedundancyOptimizer, RefusesOtherParametersOnAnotherRank) {
  run_ranks(2, [](const ProcessGroup& group) {
    AdamW adamw({torch::zeros({3 + group.rank()})});
    EXPECT_ERROR(
        ZeroRedundancyOptimizer(adamw, group), DistributedError,
        "expected parameter 0 Float [3], as on rank 0, got parameter 0 Float [4] on rank 1");
  });
}

}  // namespace
}  // namespace ladder
