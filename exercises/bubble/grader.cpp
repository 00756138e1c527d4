// SPDX-License-Identifier: Apache-2.0
#include "exercises/bubble/bubble.h"

#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "exercises/grader/grader.h"
#include "exercises/virtual_clock.h"

namespace ladder::exercises::bubble {
namespace {

using Stages = std::vector<StageCost>;

constexpr int kMostStages = 8;

bool close(double a, double b) { return std::abs(a - b) <= 1e-9 * std::abs(b) + 1e-12; }

// Another number in each check.
double fresh_factor() { return 1 + 0.001 * static_cast<double>(fresh_seed() % 100); }
StageCost equal_cost() { return {.forward = 0.002 * fresh_factor(), .backward = 0.005}; }

// A step on one clock per stage.
struct Step {
  double seconds = 0;
  double idle = 0;  // the part of all stages

  Step(const Stages& stages, int micro_batches) {
    std::vector<VirtualClock> clocks(stages.size());
    double busy = 0;
    const auto run = [&](std::size_t stage, double cost, double& arrives) {
      clocks[stage].wait_until(arrives);
      clocks[stage].compute(cost);
      busy += cost;
      arrives = clocks[stage].now();
    };
    for (int i = 0; i < micro_batches; ++i) {
      double arrives = 0;
      for (std::size_t s = 0; s < stages.size(); ++s) run(s, stages[s].forward, arrives);
    }
    for (int i = 0; i < micro_batches; ++i) {
      double arrives = 0;
      for (std::size_t s = stages.size(); s-- > 0;) run(s, stages[s].backward, arrives);
    }
    seconds = clocks.front().now();
    idle = 1 - busy / (seconds * static_cast<double>(stages.size()));
  }
};

std::string of(int stages, int micro_batches) {
  return fmt::format("{} stage{}, {} micro-batch{}", stages, stages == 1 ? "" : "s", micro_batches,
                     micro_batches == 1 ? "" : "es");
}

std::string meaning_of_step(double got, int stages, int micro_batches, const StageCost& cost) {
  const double s = stages;
  const double m = micro_batches;
  const double both = cost.forward + cost.backward;
  if (close(got, m * both)) return "no bubble: the last stage begins after S - 1 forwards";
  if (close(got, (m + s) * both)) return "S for S - 1: the first stage does not wait for itself";
  if (close(got, m * s * both)) return "the stages work at the same time, not in turn";
  if (close(got, m * both + (s - 1) * cost.forward) ||
      close(got, m * both + (s - 1) * cost.backward)) {
    return "the stages wait twice: at the beginning of the forwards and at the end of the "
           "backwards";
  }
  if (close(got, (m + 2 * (s - 1)) * both)) {
    return "the bubble is counted twice: S - 1 forwards and S - 1 backwards in all";
  }
  if (close(got, 2 * (m + s - 1) * cost.forward))
    return "a backward takes another time than a forward";
  if (close(got, (m + s - 1) * cost.forward)) return "the backwards are missing";
  return "M + S - 1 forwards, one after the other, and as many backwards";
}

std::string meaning_of_share(double got, int stages, int micro_batches) {
  const double s = stages;
  const double m = micro_batches;
  const double right = (s - 1) / (m + s - 1);
  if (close(got, (s - 1) / m)) {
    return "without warm-up: the bubble is divided by the time of the work, not by that of the "
           "step";
  }
  if (close(got, s / (m + s))) return "S for S - 1: the first stage does not wait for itself";
  if (close(got, 100 * right)) return "a share is from 0 to 1, not in percent";
  if (close(got, 1 - right)) return "the part in which a stage works";
  if (close(got, 2 * (s - 1) / (m + 2 * (s - 1)))) {
    return "the bubble is counted twice: S - 1 of M + S - 1 forwards, and the same of backwards";
  }
  return got == 0 ? "an integer division: in C++ `3 / 11` is 0"
                  : "the time of the bubble over the time of the step, with the bubble in it";
}

void equal_stages(const Bubble& yours) {
  for (const int stages : {4, 3, 1, 2, kMostStages}) {
    for (const int micro_batches : {8, 4, 1, 5, 32}) {
      const auto cost = equal_cost();
      const Step step(Stages(static_cast<std::size_t>(stages), cost), micro_batches);
      const double got = yours.step_seconds(stages, micro_batches, cost);
      expect(close(got, step.seconds),
             fmt::format("{} of {:.3f} + {:.3f} ms: a step of {:.3f} ms", of(stages, micro_batches),
                         1e3 * cost.forward, 1e3 * cost.backward, 1e3 * step.seconds),
             fmt::format("{:.3f} ms", 1e3 * got),
             meaning_of_step(got, stages, micro_batches, cost));
      result(torch::tensor(got));
    }
  }
}

void idle_shares(const Bubble& yours) {
  for (const int stages : {4, 3, 1, 2, kMostStages}) {
    for (const int micro_batches : {8, 4, 1, 5, 32}) {
      const Step step(Stages(static_cast<std::size_t>(stages), equal_cost()), micro_batches);
      const double got = yours.idle_share(stages, micro_batches);
      expect(
          close(got, step.idle),
          fmt::format("{}: a stage waits {:.4f} of the step", of(stages, micro_batches), step.idle),
          fmt::format("{:.4f}", got), meaning_of_share(got, stages, micro_batches));
      result(torch::tensor(1 + got));
    }
  }
}

std::string meaning_of_fewest(int got, int expected, int stages, double share) {
  const double without = (stages - 1) / share;
  if (got == static_cast<int>(std::ceil(without)) || got == static_cast<int>(without)) {
    return "without warm-up: the bubble is divided by the time of the work, not by that of the "
           "step";
  }
  if (got == expected + 1) return "a share of exactly `share` is small enough, or one is too many";
  if (got == expected - 1) return "rounded down: the share is still larger";
  return got > expected ? "fewer micro-batches have a share that is small enough"
                        : "the share of so few micro-batches is larger";
}

void fewest(const Bubble& yours) {
  for (const int stages : {4, 3, 1, 2, kMostStages}) {
    for (const double share : {0.2, 0.25, 0.11, 0.5, 0.0625}) {
      int expected = 1;
      const auto idle = [&](int count) {
        return Step(Stages(static_cast<std::size_t>(stages), {1, 2}), count).idle;
      };
      while (idle(expected) > share + 1e-12) ++expected;
      const int got = yours.fewest_micro_batches(stages, share);
      expect(got == expected,
             fmt::format("{} stages wait at most {}: {} micro-batches", stages, share, expected),
             fmt::format("{}, with {:.4f}", got, got > 0 ? idle(got) : 1),
             meaning_of_fewest(got, expected, stages, share));
      result(torch::tensor(got));
    }
  }
}

std::string meaning_of_uneven(double got, const Stages& stages, int micro_batches) {
  const auto n = static_cast<double>(stages.size());
  const double m = micro_batches;
  double sum = 0;
  double of_slowest = 0;  // of one stage
  StageCost slowest;
  for (const auto& stage : stages) {
    sum += stage.forward + stage.backward;
    of_slowest = std::max(of_slowest, stage.forward + stage.backward);
    slowest.forward = std::max(slowest.forward, stage.forward);
    slowest.backward = std::max(slowest.backward, stage.backward);
  }
  const double both = slowest.forward + slowest.backward;
  if (close(got, (m + n - 1) * both)) {
    return "every stage is counted as the slowest one: the first micro-batch passes through others "
           "too";
  }
  if (close(got, (m + n - 1) * sum / n)) {
    return "the mean of the stages: the slowest one decides what follows the first micro-batch";
  }
  if (close(got, m * sum)) return "the stages work at the same time, not in turn";
  if (close(got, m * both)) return "no bubble: the first micro-batch passes through all stages";
  if (close(got, sum + m * both)) return "M for M - 1: the sum has the first micro-batch already";
  if (close(got, sum + (m - 1) * of_slowest)) {
    return "the slowest forward and the slowest backward may be of different stages";
  }
  return "the sum over the stages for the first micro-batch, then the slowest stage for each "
         "further "
         "one";
}

void uneven(const Bubble& yours) {
  const double f = 0.001 * fresh_factor();
  for (const auto& stages : {Stages{{2 * f, 4 * f}, {5 * f, 3 * f}, {f, 6 * f}, {3 * f, 3 * f}},
                             Stages{{f, 2 * f}, {3 * f, 7 * f}}, Stages{{f, 3 * f}}}) {
    for (const int micro_batches : {8, 1, 5}) {
      const Step step(stages, micro_batches);
      const double got = yours.uneven_step_seconds(stages, micro_batches);
      std::string costs;
      for (const auto& one : stages) {
        costs += fmt::format(" {:.3f}+{:.3f}", 1e3 * one.forward, 1e3 * one.backward);
      }
      expect(close(got, step.seconds),
             fmt::format("{} micro-batches, stages of{} ms: a step of {:.3f} ms", micro_batches,
                         costs, 1e3 * step.seconds),
             fmt::format("{:.3f} ms", 1e3 * got), meaning_of_uneven(got, stages, micro_batches));
      result(torch::tensor(got));
    }
  }
}

void grade(Grader& grader, const Bubble& yours) {
  using Group = const ProcessGroup&;
  grader.property("the seconds of a step", 1, [&](Group) { equal_stages(yours); });
  grader.property("the idle share", 1, [&](Group) { idle_shares(yours); });
  grader.property("the fewest micro-batches", 1, [&](Group) { fewest(yours); });
  grader.property("stages that differ", 1, [&](Group) { uneven(yours); });
}

const Graded<Bubble> graded("bubble", grade);

}  // namespace
}  // namespace ladder::exercises::bubble
