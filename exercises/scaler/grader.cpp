// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "exercises/grader/grader.h"
#include "exercises/scaler/scaler.h"
#include "ladder/amp/grad_scaler.h"
#include "ladder/core/error.h"
#include "ladder/optim/sgd.h"

namespace ladder::exercises::scaler {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMissing = -1;  // no gradient at all

// Three parameters, of which the last has no gradient, and SGD with momentum: one group for the
// first parameter, one for the others.
struct Training {
  Training() {
    const std::vector<torch::Tensor> second = {parameters[2], parameters[1]};
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(second));
  }

  std::vector<torch::Tensor> parameters = {
      (torch::arange(1, 7, torch::kFloat32) + 0.01 * static_cast<double>(fresh_seed() % 100))
          .reshape({2, 3})
          .requires_grad_(),
      torch::ones({4}, torch::requires_grad()), torch::ones({2}, torch::requires_grad())};
  SGD optimizer{{parameters[0]}, {.lr = 0.1, .momentum = 0.9}};

  torch::Tensor loss(double factor) const {
    return factor * (parameters[0].square().sum() + 3 * parameters[1].sum());
  }

  torch::Tensor weights() const {
    return torch::cat({parameters[0].detach().flatten(), parameters[1].detach()});
  }
};

// Whether step throws although every parameter has a gradient.
bool always_throws(const Scaler& yours, const ProcessGroup& group) {
  Training training;
  ScalerState state;
  for (auto& parameter : training.parameters) {
    parameter.mutable_grad() = torch::ones_like(parameter);
  }
  try {
    yours.step(state, training.optimizer, group);
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}

// A scaled backward and the step; one element of the first or second gradient becomes `bad`, or the
// gradient is missing.
bool scaled_step(const Scaler& yours, ScalerState& state, Training& training,
                 const ProcessGroup& group, float bad = 0, int where = 0, double factor = 0.01) {
  training.optimizer.zero_grad();
  yours.scaled_loss(state, training.loss(factor)).backward();
  auto& gradient = training.parameters.at(static_cast<std::size_t>(where)).mutable_grad();
  if (bad == kMissing) {
    gradient.reset();
  } else if (bad != 0) {
    gradient[1] = bad;
  }
  try {
    return yours.step(state, training.optimizer, group);
  } catch (const c10::Error& error) {
    if (always_throws(yours, group)) throw;
    const std::string_view what = error.what_without_backtrace();
    throw Wrong{"no exception, although one of three parameters has no gradient",
                std::string(what.substr(0, what.find('\n'))),
                "a parameter without a gradient: test grad().defined()"};
  }
}

void scales_the_loss(const Scaler& yours) {
  const Training training;
  const ScalerState state{.scale = 1024};
  const auto loss = training.loss(1);
  const auto before = loss.item<double>();
  const auto got = yours.scaled_loss(state, loss);
  const auto expected = 1024 * before;
  expect(loss.item<double>() == before, fmt::format("the loss of the caller remains {}", before),
         fmt::format("{}", loss.item<double>()),
         "`*=` changes the loss of the caller: both are one tensor");
  expect(got.defined() && got.numel() == 1 && got.item<double>() == expected,
         fmt::format("{} for a loss of {} and a scale of 1024", expected, before),
         fmt::format("{}", got.defined() ? got.item<double>() : kNan),
         "the loss is not multiplied by the scale");
  got.backward();
  expect(training.parameters[0].grad().defined(), "backward reaches the parameters", "no gradient",
         "item() or detach() cut the loss off from the network");
  result(training.parameters[0].grad());
}

std::string meaning_of_ratio(double ratio, double scale) {
  if (std::abs(ratio / scale - 1) < 0.01) return "the gradients are not divided by the scale";
  if (ratio > scale) return "the optimizer steps before the gradients are tested and divided";
  if (ratio != 0 && ratio * scale < 10) {  // the weights have few digits for so small a change
    return "the gradients are divided by the scale more than once";
  }
  return ratio == 0 ? "the optimizer does not step, or the result of the division is dropped"
                    : "each gradient has to be divided by the scale once, before the step";
}

void equals_a_plain_step(const Scaler& yours, const ProcessGroup& group) {
  Training scaled;
  Training plain;
  ScalerState state;
  for (int step = 0; step < 3; ++step) {
    const auto before = plain.weights();
    plain.optimizer.zero_grad();
    plain.loss(0.01).backward();
    plain.optimizer.step();
    const bool taken = scaled_step(yours, state, scaled, group);
    expect(taken, "step returns true for finite gradients", "false",
           "the test for inf and NaN has its sign reversed");
    if (torch::equal(scaled.weights(), plain.weights())) continue;
    const auto change = [&](const Training& t) {
      return (t.weights() - before).abs().sum().item<double>();
    };
    throw Wrong{fmt::format("step {}: the weights of a step without a scaler", step + 1),
                fmt::format("a change {:.4g} times as large", change(scaled) / change(plain)),
                torch::equal(scaled.parameters[0], plain.parameters[0])
                    ? "a gradient of the second group is not divided: loop over all groups"
                    : meaning_of_ratio(change(scaled) / change(plain), 65536)};
  }
  result(scaled.weights());
}

// Whether a step is taken with `bad` in the gradient `where`.
bool takes(const Scaler& yours, const ProcessGroup& group, float bad, int where) {
  Training training;
  ScalerState state;
  return scaled_step(yours, state, training, group, bad, where);
}

// Of a step that returns true with `bad` in the gradient `where`.
std::string meaning_of_true(const Scaler& yours, const ProcessGroup& group, float bad, int where,
                            bool unchanged) {
  if (where == 0) {
    return unchanged ? "step returns the opposite"
                     : "a later gradient replaces the finding of an earlier one";
  }
  if (takes(yours, group, std::isnan(bad) ? kInf : kNan, where)) {
    return takes(yours, group, bad, /*where=*/0)
               ? "no gradient is tested, or step returns the opposite"
               : "the gradients of the second group are not tested: loop over all groups";
  }
  return std::isnan(bad) ? "the test finds inf and not NaN" : "the test finds NaN and not inf";
}

void skips(const Scaler& yours, const ProcessGroup& group, float bad, int where) {
  Training scaled;
  Training plain;  // without the skipped step
  ScalerState state;
  scaled_step(yours, state, scaled, group);
  scaled_step(yours, state, plain, group);
  const auto before = scaled.weights();
  const bool taken = scaled_step(yours, state, scaled, group, bad, where);
  const auto place = fmt::format("{} in the gradient of group {} of 2",
                                 std::isnan(bad) ? "NaN" : "inf", where + 1);
  const bool unchanged = torch::equal(before, scaled.weights());
  expect(unchanged || taken, place + ": no step", "the weights changed, and step returned false",
         "the optimizer steps before the gradients are tested");
  expect(!taken, place + ": step returns false", "true",
         taken ? meaning_of_true(yours, group, bad, where, unchanged) : "");
  const auto other = static_cast<std::size_t>(1 - where);
  plain.optimizer.zero_grad();
  plain.loss(0.01).backward();
  const auto& got = scaled.parameters.at(other).grad();
  const bool cleared = !got.defined() || !got.any().item<bool>();  // zero_grad() instead of a step
  expect(cleared || torch::equal(got, plain.parameters.at(other).grad()),
         place + ": finite gradients are divided too", "gradients of another size",
         "the gradients are not divided where the step is skipped: divide all of them first");
  scaled_step(yours, state, scaled, group);
  scaled_step(yours, state, plain, group);
  expect(torch::equal(plain.weights(), scaled.weights()),
         "the step after a skipped one is that of a run without it", "other weights",
         "the momentum of the optimizer has taken up the inf or NaN");
  result(scaled.weights());
}

// Two numbers whose sum is inf.
void steps_with_large_gradients(const Scaler& yours, const ProcessGroup& group) {
  Training training;
  ScalerState state{.scale = 1};
  for (auto& parameter : training.parameters) {
    parameter.mutable_grad() = torch::full_like(parameter, 3e38);
  }
  expect(yours.step(state, training.optimizer, group), "gradients of 3e38 are finite: a step",
         "no step", "the sum of the elements is tested, which can be inf: test each of them");
}

// o: overflow by inf, n: by NaN, '.': none.
constexpr std::string_view kSteps = "........o..o.....n.....on......";
constexpr std::int64_t kInterval = 3;

std::string meaning_of_scale(std::size_t step, double got, double expected, double previous) {
  const auto overflow = kSteps.substr(0, step + 1).find_first_of("on") != std::string_view::npos;
  if (kSteps[step] != '.') return "a skipped step does not halve the scale";
  if (got < expected) {
    return got == previous ? "good_steps is compared before it counts the present step"
                           : "the scale changes the wrong way";
  }
  return overflow ? "a skipped step does not set good_steps to 0"
                  : "good_steps is not set to 0 when the scale grows";
}

void scales_of_pytorch(const Scaler& yours, const ProcessGroup& group, double first) {
  Training mine;
  Training reference;
  ScalerState state{.scale = first, .growth_interval = kInterval};
  GradScaler expected({.init_scale = first, .growth_interval = kInterval});
  for (std::size_t step = 0; step < kSteps.size(); ++step) {
    const double previous = state.scale;
    const float bad = kSteps[step] == 'o' ? kInf : kSteps[step] == 'n' ? kNan : 0;
    reference.optimizer.zero_grad();
    expected.scale(reference.loss(0.01)).backward();
    if (bad != 0) reference.parameters[1].mutable_grad()[1] = bad;
    expected.step(reference.optimizer);
    expected.update();
    scaled_step(yours, state, mine, group, bad, /*where=*/1);
    expect(
        state.scale == expected.get_scale(),
        fmt::format("scale {} after step {} (growth_interval 3)", expected.get_scale(), step + 1),
        fmt::format("{}", state.scale),
        first < 1 ? "the scale has a bound, such as 1: it can be smaller"
                  : meaning_of_scale(step, state.scale, expected.get_scale(), previous));
    expect(state.scale <= previous || state.good_steps == 0,
           fmt::format("good_steps 0 after step {}, in which the scale grows", step + 1),
           fmt::format("{}", state.good_steps), "good_steps is not set to 0 when the scale grows");
    result(torch::tensor(state.scale));
  }
  expect(torch::equal(mine.weights(), reference.weights()), "the weights of PyTorch's scaler",
         "other weights", "the scale changes before the gradients are divided by it");
  result(mine.weights());
}

// A step of each rank, with gradients of its own, and what the ranks did.
struct Together {
  std::vector<double> taken;  // 1 or 0 on each rank
  std::vector<double> scales;

  Together(const Scaler& yours, const ProcessGroup& group, Training& training, float bad) {
    ScalerState state;
    try {
      const bool own = scaled_step(yours, state, training, group, bad, /*where=*/1, factor(group));
      const auto all = group.all_gather_into_tensor(torch::tensor({own ? 1.0 : 0.0, state.scale}));
      for (int rank = 0; rank < group.world_size(); ++rank) {
        taken.push_back(all[rank][0].item<double>());
        scales.push_back(all[rank][1].item<double>());
      }
    } catch (const DistributedError& error) {
      const std::string_view what = error.what();
      if (what.find("this rank called") == std::string_view::npos) throw;
      throw Wrong{"the same collectives of all ranks in step; the all_gather is the grader's own",
                  std::string(what.substr(0, what.find('\n'))),
                  "a collective is inside an `if` or a loop that differs from rank to rank"};
    }
  }

  static double factor(const ProcessGroup& group) { return 0.01 * (group.rank() + 1); }
  bool all(double step, double scale) const {
    const auto is = [](double expected) {
      return [expected](double got) { return got == expected; };
    };
    return std::ranges::all_of(taken, is(step)) && std::ranges::all_of(scales, is(scale));
  }
  std::string text() const {
    return fmt::format("steps taken: {}; scales: {}", fmt::join(taken, ", "),
                       fmt::join(scales, ", "));
  }
};

// Without overflow, ranks with different gradients take different steps.
void ranks_step(const Scaler& yours, const ProcessGroup& group) {
  Training scaled;
  Training plain;
  const Together step(yours, group, scaled, /*bad=*/0);
  expect(
      step.all(1, ScalerState().scale),
      "no overflow on three ranks: all take the step, and all scales are 65536", step.text(),
      "the flag after all_reduce is tested wrongly: 0 of 3 ranks have an overflow; a sum of bool "
      "is at most 1");
  const auto before = plain.weights();
  plain.loss(Together::factor(group)).backward();
  plain.optimizer.step();
  expect(torch::equal(scaled.weights(), plain.weights()),
         "three ranks: the weights of a plain step with the gradients of the rank", "other weights",
         torch::equal(scaled.weights(), before)
             ? "optimizer.step() is not reached on several ranks"
             : "the gradients are summed over the ranks: exchange the decision alone");
  result(scaled.weights());
}

void ranks_without_a_gradient_step(const Scaler& yours, const ProcessGroup& group) {
  Training training;
  const Together step(yours, group, training, group.rank() == 1 ? kMissing : 0);
  expect(step.all(1, ScalerState().scale),
         "a parameter without a gradient on rank 1 of 3: all take the step", step.text(),
         "the ranks call other collectives: exchange one flag, after the loop");
}

void ranks_skip(const Scaler& yours, const ProcessGroup& group) {
  Training training;
  const auto before = training.weights();
  const Together step(yours, group, training, group.rank() == 1 ? kNan : 0);
  expect(step.all(0, ScalerState().scale / 2) && torch::equal(before, training.weights()),
         "a NaN on rank 1 of 3: all ranks skip, and all scales are 32768", step.text(),
         step.all(1, ScalerState().scale)
             ? "the flag after all_reduce is tested wrongly: one overflow is enough to skip"
             : "each rank decides alone, so their weights differ from now on");
  result(training.weights());
  result(torch::tensor(step.scales));
}

void grade(Grader& grader, const Scaler& yours) {
  using Group = const ProcessGroup&;
  grader.property("the loss is scaled", 1, [&](Group) { scales_the_loss(yours); });
  grader.property("without overflow, a step equals a plain one, bit for bit", 1,
                  [&](Group group) { equals_a_plain_step(yours, group); });
  grader.property("inf and NaN skip the step and change nothing", 1, [&](Group group) {
    for (const int where : {1, 0}) {
      for (const float bad : {kInf, kNan}) skips(yours, group, bad, where);
    }
    steps_with_large_gradients(yours, group);
  });
  grader.property("the scales of PyTorch's scaler over 31 steps", 1, [&](Group group) {
    for (const double first : {1024.0, 0.25}) scales_of_pytorch(yours, group, first);
  });
  grader.property("without overflow, three ranks take steps of their own", 3, [&](Group group) {
    ranks_step(yours, group);
    ranks_without_a_gradient_step(yours, group);
  });
  grader.property("a NaN on one of three ranks: all skip", 3,
                  [&](Group group) { ranks_skip(yours, group); });
  const auto yours_step = [&](Group group) {
    Training training;
    ScalerState state;
    for (int i = 0; i < 100; ++i) scaled_step(yours, state, training, group);
  };
  const auto library_step = [](Group) {
    Training training;
    GradScaler scaler;
    for (int i = 0; i < 100; ++i) {
      training.optimizer.zero_grad();
      scaler.scale(training.loss(0.01)).backward();
      scaler.step(training.optimizer);
      scaler.update();
    }
  };
  grader.compare_times(1, "100 steps of a small network", yours_step, library_step);
}

const Graded<Scaler> graded("scaler", grade);

}  // namespace
}  // namespace ladder::exercises::scaler
