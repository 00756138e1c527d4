// SPDX-License-Identifier: Apache-2.0
// Gradient accumulation: k batches of b samples are one of k·b.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/core/error.h"
#include "ladder/optim/sgd.h"
#include "tests/support/accelerators.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

// The last window is short, and so is its last batch.
constexpr int kSteps = 3;
constexpr int kWindows = 3;

struct Training {
  int num_steps = 1;
  std::int64_t batch_size = kSteps * kBatch;
  bool sync_each_batch = false;
};
using Backward = std::function<void(Accelerator&, const torch::Tensor& loss)>;

// The gradients at each step of an epoch, in which the weights stand still.
std::vector<torch::Tensor> gradients_of(
    Accelerators& ranks, const Training& training,
    const Backward& backward = [](auto& accelerator, auto& loss) { accelerator.backward(loss); }) {
  const auto accelerator =
      ranks.make({.gradient_accumulation = {.num_steps = training.num_steps,
                                            .sync_each_batch = training.sync_each_batch}});
  const auto network = small_net();
  auto [loader, model, optimizer] = accelerator->prepare(
      image_loader(kSamples, training.batch_size), network, plain_sgd(*network, 0.0));
  std::vector<torch::Tensor> gradients;
  for (const Batch& batch : loader) {
    const auto accumulation = accelerator->accumulate(*model);
    backward(*accelerator, loss_of(*model, basicnet(), batch));
    if (accelerator->sync_gradients()) gradients.push_back(flat_gradients(*model));
    optimizer->step();
    optimizer->zero_grad();
  }
  return gradients;
}

class AccumulationOfRanks : public testing::TestWithParam<int> {
 protected:
  static int world() { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(World, AccumulationOfRanks, testing::Values(1, 2));

// With Python's weights the last window is too weak: otherwise the test would show nothing.
TEST_P(AccumulationOfRanks, HasTheGradientsOfLargeBatches) {
  run_accelerators(world(), [](Accelerators& ranks) {
    const auto large = gradients_of(ranks, {});
    ASSERT_EQ(large.size(), kWindows);
    Training small = {.num_steps = kSteps, .batch_size = kBatch};
    for (const bool sync_each_batch : {false, true}) {
      small.sync_each_batch = sync_each_batch;
      const auto found = gradients_of(ranks, small);
      ASSERT_EQ(found.size(), kWindows);
      for (std::size_t i = 0; i < kWindows; ++i) {
        EXPECT_LE(relative_difference(found[i], large[i]), 1e-6) << i;
      }
    }
    const auto pythons = gradients_of(
        ranks, small, [](auto&, const torch::Tensor& loss) { (loss / kSteps).backward(); });
    EXPECT_LE(relative_difference(pythons[0], large[0]), 1e-6);
    EXPECT_GE(relative_difference(pythons[2], large[2]), 0.1);
  });
}

// Whether the gradients are the same on all ranks.
bool equal_gradients(const Accelerator& accelerator, const Model& model) {
  const auto all = accelerator.gather(flat_gradients(model).unsqueeze(0));
  return torch::equal(all[0], all[1]);
}

TEST(Accumulation, SynchronisesNoneOfItsModelsInTheMiddleOfAWindow) {
  run_accelerators(2, [](Accelerators& ranks) {
    for (const bool each : {false, true}) {
      const auto accelerator =
          ranks.make({.gradient_accumulation = {.num_steps = 3, .sync_each_batch = each}});
      auto [loader, one, two] = accelerator->prepare(image_loader(12, 4), small_net(), small_net());
      std::vector<bool> equal;
      for (const Batch& batch : loader) {
        const auto accumulation = accelerator->accumulate(*one, *two);
        for (Model* const model : {one.get(), two.get()}) {
          run_backward(*accelerator, *model, basicnet(), batch);
          equal.push_back(equal_gradients(*accelerator, *model));
        }
      }
      EXPECT_EQ(equal, (std::vector{each, each, each, each, true, true}));
    }
  });
}

TEST(Accumulation, OfANoSyncLastsAsLongAsItsScopeAndMayBeConditional) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    const auto model = accelerator->prepare(small_net());
    const auto batch = slice_of(random_batch(4), accelerator->process_index(), 2);
    for (const bool pauses : {true, false}) {
      const auto pause = accelerator->no_sync(*model, pauses);
      run_backward(*accelerator, *model, basicnet(), batch);
      EXPECT_EQ(equal_gradients(*accelerator, *model), !pauses);
    }
  });
}

// accelerate/accelerator.py: the setter of Accelerator.gradient_accumulation_steps changes
// GradientState.num_steps, and _do_sync sets sync_gradients after each num_steps batches. The
// package's loss is divided by num_steps (Accelerator.backward).
TEST(Accumulation, HasTheNumberOfStepsThatWasSetLast) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto accelerator = ranks.make({.gradient_accumulation = {.num_steps = 2}});
    const auto model = accelerator->prepare(small_net());
    EXPECT_ERROR(run_backward(*accelerator, *model, basicnet(), random_batch(2)), UsageError,
                 "const auto accumulation = accelerator.accumulate(*model);");
    for (const int steps : {3, 1, 2}) {
      accelerator->set_gradient_accumulation_steps(steps);
      EXPECT_EQ(accelerator->gradient_accumulation_steps(), steps);
      for (int batch = 1; batch <= 2 * steps; ++batch) {
        const auto accumulation = accelerator->accumulate(*model);
        EXPECT_EQ(accelerator->sync_gradients(), batch % steps == 0);
        EXPECT_EQ(accelerator->loss_weight(), 1.0 / steps);
      }
    }
    const auto accumulation = accelerator->accumulate(*model);
    EXPECT_ERROR(accelerator->set_gradient_accumulation_steps(4), UsageError,
                 "change it after a step");
    accelerator->drop_window();
    EXPECT_ERROR(accelerator->set_gradient_accumulation_steps(0), UsageError,
                 "gradient_accumulation_steps: expected 1 to 1000000, got 0");
  });
}

// A pass that ends by `break` in the middle of a window leaves nothing to the next pass.
TEST_P(AccumulationOfRanks, DropsAWindowThatItsPassDidNotEnd) {
  run_accelerators(world(), [](Accelerators& ranks) {
    std::vector<torch::Tensor> weights;
    for (const int batches_before : {0, 3}) {
      const auto accelerator = ranks.make({.gradient_accumulation = {.num_steps = 4}});
      const auto network = small_net(DropoutMasks::kByPosition);
      auto [loader, model, optimizer] =
          accelerator->prepare(image_loader(8, 2), network, plain_sgd(*network));
      const auto train = [&, &loader = loader, &model = model,
                          &optimizer = optimizer](int batches) {
        for (const Batch& batch : loader) {
          if (batches-- == 0) break;
          const auto accumulation = accelerator->accumulate(*model);
          accelerator->backward(loss_of(*model, basicnet(), batch));
          optimizer->step();
          optimizer->zero_grad();
        }
      };
      if (batches_before > 0) train(batches_before);
      train(4);
      weights.push_back(flat_weights(*network));
    }
    EXPECT_TRUE(torch::equal(weights[0], weights[1]));
  });
}

// Another optimizer, which has its zero_grad and backward in each batch before those of the order.
enum class Other { kNone, kStepsBefore, kStepsAfter };

// The weight after each batch, with the calls of tests/golden/accelerate_zero_grad.py.
std::vector<double> weights_in_order(Accelerators& ranks, const std::string& order, int num_steps,
                                     Other beside) {
  const auto accelerator = ranks.make({.gradient_accumulation = {.num_steps = num_steps}});
  auto weight = torch::zeros({1}, torch::requires_grad());
  const auto optimizer =
      accelerator->prepare(std::make_unique<SGD>(std::vector{weight}, SgdOptions{.lr = 0.5}));
  auto other = torch::zeros({1}, torch::requires_grad());
  std::shared_ptr<AcceleratedOptimizer> own;
  if (beside != Other::kNone) {
    own = accelerator->prepare(std::make_unique<SGD>(std::vector{other}, SgdOptions()));
  }
  std::vector<double> found;
  for (int batch = 0; batch < 12; ++batch) {
    for (const char call : order) {
      if (call == 'A') std::ignore = accelerator->accumulate();
      if (call == 'A' && own != nullptr) {
        own->zero_grad();
        accelerator->backward(other.sum());
        if (beside == Other::kStepsBefore) own->step();
      }
      if (call == 'Z') optimizer->zero_grad();
      if (call == 'B') accelerator->backward(((weight - batch % 5).square() * 0.5).sum());
      if (call == 'S') optimizer->step();
    }
    if (beside == Other::kStepsAfter) own->step();
    found.push_back(weight.item<double>());
  }
  return found;
}

class AccumulationOrders : public testing::TestWithParam<Other> {};

INSTANTIATE_TEST_SUITE_P(Accelerate, AccumulationOrders,
                         testing::Values(Other::kNone, Other::kStepsBefore, Other::kStepsAfter));

TEST_P(AccumulationOrders, TakeZeroGradBackwardAndStepAsPythonAndMore) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto& cases = golden_json("accelerate_zero_grad.json").at("cases");
    const auto pythons = [&](const std::string& order, int num_steps) {
      const auto found = std::ranges::find_if(cases, [&](const auto& each) {
        return each.at("order") == order && each.at("num_steps") == num_steps;
      });
      return found->at("weights").template get<std::vector<double>>();
    };
    for (const auto& each : cases) {
      const auto order = each.at("order").get<std::string>();
      const auto num_steps = each.at("num_steps").get<int>();
      auto expected = pythons(order, num_steps);
      // In Python the last batch of a window erases the others here.
      if (num_steps > 1 && order == "AZBS") expected = pythons("ABSZ", num_steps);
      if (num_steps > 1 && order == "SAZB") {
        expected = pythons("ABSZ", num_steps);
        expected.insert(expected.begin(), 0.0);
        expected.pop_back();
      }
      EXPECT_EQ(weights_in_order(ranks, order, num_steps, GetParam()), expected)
          << order << " " << num_steps;
    }
  });
}

// An assignment makes the new one before the old one ends.
TEST(Accumulation, MayBeAssignedToOneVariable) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make({.gradient_accumulation = {.num_steps = 3}});
    const auto model = accelerator->prepare(small_net());
    const auto batch = slice_of(random_batch(4), accelerator->process_index(), 2);
    Accelerator::Accumulation accumulation;
    for (const bool equal : {false, false, true}) {
      accumulation = accelerator->accumulate(*model);
      run_backward(*accelerator, *model, basicnet(), batch);
      const auto all = accelerator->gather(flat_gradients(*model).unsqueeze(0));
      EXPECT_EQ(torch::equal(all[0], all[1]), equal);
    }
  });
}

// The window would count the batch twice, and one of two models would never step.
TEST(Accumulation, IsOnePerBatchOfALoader) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto accelerator = ranks.make({.gradient_accumulation = {.num_steps = 2}});
    auto [loader, one, two] =
        accelerator->prepare(image_loader(kSamples, kBatch), small_net(), small_net());
    for (const Batch& batch : loader) {
      const auto accumulation = accelerator->accumulate(*one);
      run_backward(*accelerator, *one, basicnet(), batch);
      EXPECT_ERROR(static_cast<void>(accelerator->accumulate(*two)), UsageError,
                   "called twice for one batch; hint: call it once, with all models");
    }
  });
}

TEST(Backward, RefusesALossThatIsNotOneNumber) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    EXPECT_ERROR(accelerator->backward(torch::Tensor()), UsageError,
                 "expected a loss of one number, got 'an undefined tensor'");
    EXPECT_ERROR(accelerator->backward(torch::ones({2})), UsageError, "got '2 numbers'");
  });
}

}  // namespace
}  // namespace ladder
