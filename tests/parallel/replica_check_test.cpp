// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/replica_check.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

// A module of the parameters that a test adds.
class Parameters : public torch::nn::Module {
 public:
  void add(const std::string& name, std::int64_t size, bool trained = true,
           torch::ScalarType dtype = torch::kFloat32) {
    register_parameter(name, torch::ones({size, 2}, dtype), trained);
  }
};

struct Difference {
  std::string what;
  std::function<void(Parameters&)> on_rank_0;
  std::function<void(Parameters&)> on_others;
  std::string message;
};

std::vector<Difference> differences() {
  const auto nothing = [](Parameters&) {};
  return {
      {"shape", [](Parameters& p) { p.add("b", 3); }, [](Parameters& p) { p.add("b", 4); },
       "expected b Float [3, 2], as on rank 0, got b Float [4, 2] on ranks 1, 2"},
      {"name", [](Parameters& p) { p.add("b", 3); }, [](Parameters& p) { p.add("c", 3); },
       "expected b Float [3, 2], as on rank 0, got c Float [3, 2] on ranks 1, 2"},
      {"more", nothing, [](Parameters& p) { p.add("b", 3); },
       "expected nothing more, as on rank 0, got b Float [3, 2] on ranks 1, 2"},
      {"fewer", [](Parameters& p) { p.add("b", 3); }, nothing,
       "expected b Float [3, 2], as on rank 0, got nothing more on ranks 1, 2"},
      {"not trained", [](Parameters& p) { p.add("b", 3); },
       [](Parameters& p) { p.add("b", 3, false); },
       "expected b Float [3, 2], as on rank 0, got b Float [3, 2], not trained on ranks 1, 2"},
      {"strides", [](Parameters& p) { p.add("b", 3); },
       [](Parameters& p) { p.register_parameter("b", torch::zeros({2, 3}).t()); },
       "expected b Float [3, 2], as on rank 0, got b Float [3, 2], strides [1, 3] on ranks 1, 2"},
      {"dtype", [](Parameters& p) { p.add("b", 3); },
       [](Parameters& p) { p.add("b", 3, true, torch::kFloat64); },
       "expected b Float [3, 2], as on rank 0, got b Double [3, 2] on ranks 1, 2"}};
}

TEST_ON_RANKS(RequireSameParameters, NamesTheFirstThatDiffersOnEveryRank, 3) {
  for (const auto& difference : differences()) {
    SCOPED_TRACE(difference.what);
    Parameters module;
    module.add("a", 5);
    (group.rank() == 0 ? difference.on_rank_0 : difference.on_others)(module);
    EXPECT_ERROR(require_same_parameters(module, group), DistributedError,
                 "model: " + difference.message);
    EXPECT_ERROR(GradientReducer(module, group), DistributedError, difference.message);
  }
  Parameters expanded;
  expanded.register_buffer("mask", torch::ones({1}).expand({3}));
  EXPECT_ERROR(GradientReducer(expanded, group), UsageError,
               "model: elements of mask share memory, as after expand(); hint: register ");
  Parameters equal;
  equal.add("a", 5);
  EXPECT_NO_THROW(require_same_parameters(equal, group));
}

TEST_ON_RANKS(RequireEqualReplicas, NamesTheTensorOfWhichOneNumberDiffersOnEveryRank, 3) {
  const auto model = first_model(Recipe({.name = "convnet"}));
  DistributedDataParallel ddp(model, group);
  EXPECT_NO_THROW(require_equal_replicas(ddp, group));
  EXPECT_NO_THROW(require_equal_parameters(ddp, group));
  const torch::NoGradGuard no_grad;
  if (group.rank() == 2) model->named_parameters()["layer2.0.weight"][3][2][1][0] += 1e-7;
  for (const auto& check : {require_equal_replicas, require_equal_parameters}) {
    EXPECT_ERROR(check(ddp, group), DistributedError, "expected layer2.0.weight ");
    EXPECT_ERROR(check(ddp, group), DistributedError, "on rank 2; hint: ");
  }
}

TEST_ON_RANKS(RequireEqualReplicas, ComparesTheBitsOfBuffersTooAndTheOtherCheckDoesNot, 2) {
  const auto model = first_model(Recipe({.name = "convnet"}));
  const torch::NoGradGuard no_grad;
  // Zero and minus zero are equal numbers, and unequal bits.
  model->named_buffers()["layer1.1.running_mean"][0] = group.rank() == 0 ? 0.0 : -0.0;
  EXPECT_ERROR(require_equal_replicas(*model, group), DistributedError,
               "expected layer1.1.running_mean ");
  EXPECT_NO_THROW(require_equal_parameters(*model, group));
}

TEST_ALONE(RequireEqualReplicas, IsContentOnOneRank) {
  const auto model = first_model(Recipe({.name = "convnet"}));
  EXPECT_NO_THROW(require_equal_replicas(*model, ProcessGroup::single()));
  EXPECT_NO_THROW(require_same_parameters(*model, ProcessGroup::single()));
}

}  // namespace
}  // namespace ladder
