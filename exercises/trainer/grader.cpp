// SPDX-License-Identifier: Apache-2.0
#include "exercises/trainer/trainer.h"

#include <fmt/format.h>
#include <torch/utils.h>

#include <array>
#include <atomic>
#include <cmath>
#include <string>

#include "exercises/grader/grader.h"
#include "exercises/grader/images.h"
#include "exercises/grader/shared.h"

namespace ladder::exercises::trainer {
namespace {

constexpr std::int64_t kTrain = 37;
constexpr std::int64_t kEval = 11;

// Every batch has 5 samples over all processes, and every second one a step.
TrainingArguments arguments(std::int64_t max_steps) {
  TrainingArguments args;
  args.max_steps = max_steps;
  args.per_device_train_batch_size = 5;
  args.per_device_eval_batch_size = 4;
  args.gradient_accumulation_steps = 2;
  args.accelerator_config = {.split_batches = true, .even_batches = false};
  args.optim = OptimizerName::kSgd;
  args.learning_rate = 0.05;
  args.eval_strategy = IntervalStrategy::kSteps;
  args.eval_steps = 1;
  args.save_strategy = SaveStrategy::kNo;
  return args;
}

TrainerOptions options(std::int64_t max_steps) {
  return {.model = first_model(basicnet()),
          .args = arguments(max_steps),
          .train_dataset = std::make_shared<Images>(kTrain),
          .eval_dataset = std::make_shared<Images>(kEval),
          .accelerator = {.cpu = true, .threads = 1, .quiet = true}};
}

// What a training ends with.
struct Result {
  double train_loss = 0;
  double eval_loss = 0;
  double error = 0;
};

Metrics wrong_share(const EvalPrediction& prediction) {
  return {{"error", 1 - accuracy(prediction).at("accuracy")}};
}

Result trained(const LossFunction& loss, const MetricsFunction& metrics) {
  auto with = options(/*max_steps=*/4);
  with.compute_loss_func = loss;
  with.compute_metrics = metrics;
  Trainer trainer(std::move(with));
  Result result{.train_loss = trainer.train().training_loss};
  const auto evaluated = trainer.evaluate();
  result.eval_loss = evaluated.at("eval_loss");
  const double* const error = find_metric(evaluated, "eval_error");
  expect(error != nullptr, "a metric \"error\", which the Trainer logs as eval_error",
         "no such metric", "the metric has another name; the Trainer adds eval_");
  result.error = *error;
  return result;
}

bool close(double a, double b) { return std::abs(a - b) <= 1e-4 * std::abs(b); }

std::string meaning_of_loss(double got, double expected) {
  if (got > 2.5 * expected) return "the loss is a sum over samples";
  return got < 0.6 * expected
             ? "items.mean() divides a sum, and was given a mean"
             : "the mean over the part of one process: parts differ in size, and several batches "
               "share a step";
}

void compare(const Result& got, const Result& expected) {
  expect(close(got.train_loss, expected.train_loss),
         fmt::format("a training loss of {:.5f}", expected.train_loss),
         fmt::format("{:.5f}", got.train_loss),
         meaning_of_loss(got.train_loss, expected.train_loss));
  expect(close(got.eval_loss, expected.eval_loss),
         fmt::format("an eval_loss of {:.5f}", expected.eval_loss),
         fmt::format("{:.5f}", got.eval_loss), "the weights after the training differ");
  expect(std::abs(got.error - expected.error) < 1e-9,
         fmt::format("an eval_error of {:.5f}", expected.error), fmt::format("{:.5f}", got.error),
         std::abs(got.error - (1 - expected.error)) < 1e-9 ? "the share of correct samples"
         : std::abs(got.error - 100 * expected.error) < 1e-9
             ? "the metric is in percent, and has to be a share"
             : "the metric is a count, or counts other samples");
  result(torch::tensor({got.train_loss, got.eval_loss, got.error}));
}

// The losses of the evaluations; the lowest is the fourth, then three are not lower.
constexpr std::array kLosses = {5.0, 4.0, 4.5, 3.0, 3.5, 3.2, 3.1, 3.05, 2.0, 6.0};
constexpr int kPatience = 3;
constexpr std::int64_t kStop = 7;

std::string meaning_of_stop(std::int64_t step) {
  if (step == std::ssize(kLosses)) {
    return "should_training_stop is not set, or the loss is compared with that of the last "
           "evaluation";
  }
  return step < kStop ? "an improvement does not set the count to 0"
                      : "the training stops one evaluation too late";
}

void stops(const TrainerParts& yours) {
  auto with = options(std::ssize(kLosses));
  Trainer* running = nullptr;
  with.compute_loss_func = [&](const torch::Tensor& outputs, const torch::Tensor& /*labels*/,
                               const NumItems& /*items*/) {
    const bool evaluates = !torch::GradMode::is_enabled();
    const auto step = evaluates ? running->state().global_step : 1;
    return 0 * outputs.sum() + kLosses.at(static_cast<std::size_t>(step - 1));
  };
  with.callbacks = {yours.make_stopper(kPatience)};
  Trainer trainer(std::move(with));
  running = &trainer;
  const auto steps = trainer.train().global_step;
  expect(steps == kStop,
         fmt::format(
             "eval_loss 5, 4, 4.5, 3, 3.5, 3.2, 3.1, 3.05 and patience 3: a stop after step {}",
             kStop),
         steps == std::ssize(kLosses) ? "no stop" : fmt::format("a stop after step {}", steps),
         meaning_of_stop(steps));
  result(torch::tensor(steps));
}

void grade(Grader& grader, const TrainerParts& yours) {
  const Shared<Result> expected;
  grader.property_without_group("one process: losses and metric of the library", 1, [&] {
    for (const auto* name : {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
      ::unsetenv(name);
    }
    *expected = trained(nullptr, wrong_share);
    compare(trained(yours.compute_loss, yours.compute_metrics), *expected);
  });
  for (const int world_size : {2, 3}) {
    grader.property_without_group(
        fmt::format("{} processes: losses and metric of one", world_size), world_size,
        [&] { compare(trained(yours.compute_loss, yours.compute_metrics), *expected); });
  }
  for (const int world_size : {1, 2}) {
    grader.property_without_group(fmt::format("{} process{}: a stop at the right step", world_size,
                                              world_size == 1 ? "" : "es"),
                                  world_size, [&] { stops(yours); });
  }
}

const Graded<TrainerParts> graded("trainer", grade);

}  // namespace
}  // namespace ladder::exercises::trainer
