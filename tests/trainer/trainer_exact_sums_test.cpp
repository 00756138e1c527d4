// SPDX-License-Identifier: Apache-2.0
// sums exact: what a Trainer computes and logs does not depend on processes and threads.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ladder/trainer/trainer.h"
#include "tests/support/ranks.h"
#include "tests/support/scripted_trainer.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using nlohmann::json;

// Points around three centres, as floats of which no sum is exact.
class Points : public Dataset {
 public:
  explicit Points(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto number =
        torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), torch::kInt64);
    const auto phase = number.to(torch::kFloat32).unsqueeze(1) * torch::tensor({0.1F, 0.7F, 2.1F});
    const auto x = torch::cat({phase.sin(), torch::ones({number.size(0), 1})}, 1);
    return {.inputs = x, .targets = (number * number) % 3};
  }

 private:
  std::int64_t size_;
};

// 5 batches of 8 samples, of which the last has 5, in windows of 2.
TrainingArguments exact_arguments() {
  TrainingArguments args;
  args.num_train_epochs = 6;
  args.per_device_train_batch_size = 8;
  args.per_device_eval_batch_size = 6;
  args.gradient_accumulation_steps = 2;
  args.accelerator_config = {.split_batches = true, .even_batches = false};
  args.learning_rate = 0.3;
  args.lr_scheduler_type = SchedulerType::kReduceLrOnPlateau;
  args.lr_scheduler_kwargs = R"({"patience": 0, "threshold": 0.01})";
  args.max_grad_norm = 0.2;
  args.logging_steps = 2;
  args.eval_strategy = IntervalStrategy::kEpoch;
  args.save_strategy = SaveStrategy::kNo;
  args.sums = Sums::kExact;
  args.micro_batch = 2;
  return args;
}

struct ExactSetup {
  int processes = 1;
  int threads = 1;
  TrainingArguments args = exact_arguments();
};

// All that is logged, but for the speed, and the weights at the end.
json training_of(const ExactSetup& setup) {
  const TemporaryFolder folder;
  const auto run = [&] {
    Trainer trainer({.model = std::make_shared<scripted::Linear>(),
                     .args = setup.args,
                     .train_dataset = std::make_shared<Points>(37),
                     .eval_dataset = std::make_shared<Points>(23),
                     .compute_metrics = accuracy,
                     .accelerator = {.cpu = true, .threads = setup.threads, .quiet = true}});
    const auto output = trainer.train();
    json seen = {{"training_loss", output.training_loss}};
    for (const auto& entry : trainer.state().log_history) {
      for (const char* name :
           {"loss", "grad_norm", "learning_rate", "eval_loss", "eval_accuracy"}) {
        const double* const value = find_metric(entry.values, name);
        if (value != nullptr) seen[name].push_back(*value);
      }
    }
    for (const auto& parameter : trainer.model().parameters()) {
      const auto weights = parameter.detach().flatten().to(torch::kDouble);
      for (std::int64_t i = 0; i < weights.size(0); ++i) {
        seen["weights"].push_back(weights[i].item<double>());
      }
    }
    folder.write("rank" + std::to_string(trainer.accelerator().process_index()), seen.dump());
  };
  expect_well(end_of_ranks(setup.processes, [&](int /*rank*/) { run(); }));
  const auto seen = json::parse(folder.read("rank0"));
  for (int rank = 1; rank < setup.processes; ++rank) {
    EXPECT_EQ(json::parse(folder.read("rank" + std::to_string(rank))), seen);
  }
  return seen;
}

// Key by key, so that a failure shows the first kind of number that differs.
void expect_same_training(const json& got, const json& expected) {
  for (const auto& [name, values] : expected.items()) EXPECT_EQ(got[name], values) << name;
}

TEST(ExactSumsOfTrainer, GiveTheSameLossesAndWeightsForAnyProcessesAndThreads) {
  const auto one = training_of({});
  EXPECT_EQ(one["eval_loss"].size(), 6U);
  EXPECT_LT(one["learning_rate"].back(), 0.3) << "no plateau";
  for (const auto& [processes, threads] :
       std::vector<std::pair<int, int>>{{2, 1}, {3, 1}, {1, 2}, {2, 2}}) {
    SCOPED_TRACE(testing::Message() << processes << " processes, " << threads << " threads");
    expect_same_training(training_of({.processes = processes, .threads = threads}), one);
  }
}

// The loss is that of sums in float, to their precision.
TEST(ExactSumsOfTrainer, LogTheLossesOfSumsInFloat) {
  ExactSetup fast;
  fast.args.sums = Sums::kFast;
  fast.args.micro_batch = TrainingArguments{}.micro_batch;
  fast.args.num_train_epochs = 1;
  ExactSetup exact = fast;
  exact.args.sums = Sums::kExact;
  exact.args.micro_batch = 2;
  exact.processes = 2;
  const auto expected = training_of(fast);
  const auto got = training_of(exact);
  for (const char* name : {"loss", "eval_loss", "grad_norm"}) {
    ASSERT_EQ(got[name].size(), expected[name].size());
    for (std::size_t i = 0; i < got[name].size(); ++i) {
      EXPECT_NEAR(got[name][i].get<double>(), expected[name][i].get<double>(), 1e-5) << name << i;
    }
  }
}

}  // namespace
}  // namespace ladder
