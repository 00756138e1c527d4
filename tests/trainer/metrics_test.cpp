// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/metrics.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/trainer/trainer_state.h"
#include "ladder/trainer/training_plan.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace ladder {
namespace {

using nlohmann::ordered_json;

const ordered_json& golden() { return golden_json<ordered_json>("trainer.json"); }

// Calls `compare` with each golden entry under `key` whose numbers, under `name`, are floats as
// ours are: Python keeps some as integers. Expects at least `least` of them.
template <typename Compare>
void for_each_golden(const char* key, const char* name, int least, const Compare& compare) {
  int compared = 0;
  for (const auto& printed : golden()[key]) {
    Metrics metrics;
    for (const auto& [metric, value] : printed[name].items()) {
      if (value.is_string()) metrics[metric] = number(value);
    }
    if (metrics.size() != printed[name].size()) continue;
    ++compared;
    compare(printed, metrics);
  }
  EXPECT_GE(compared, least);
}

TEST(Metrics, LogLinesAndTablesAreThoseOfTransformers) {
  for_each_golden("printed_logs", "logs", 4, [](const auto& printed, const Metrics& logs) {
    EXPECT_EQ(log_line(logs) + '\n', printed["text"].template get<std::string>());
  });
  for_each_golden("log_metrics", "metrics", 2, [](const auto& printed, const Metrics& metrics) {
    const auto lines = metrics_lines(printed["split"].template get<std::string>(), metrics);
    EXPECT_EQ(fmt::format("{}\n", fmt::join(lines, "\n")),
              printed["text"].template get<std::string>());
  });
}

TEST(Metrics, JsonHasNoNaN) {
  Metrics metrics;
  metrics["b"] = std::nan("");
  metrics["a"] = 0.5;
  EXPECT_EQ(to_json(metrics).dump(), R"({"a":0.5,"b":null})");
}

TEST(Metrics, SpeedIsRounded) {
  const auto metrics = speed_metrics("train", 3.0, 100.0, 10.0);
  EXPECT_EQ(metrics.at("train_runtime"), 3.0);
  EXPECT_EQ(metrics.at("train_samples_per_second"), 33.333);
  EXPECT_EQ(metrics.at("train_steps_per_second"), 3.333);
  EXPECT_EQ(speed_metrics("train", 0.0, 1.0, 1.0).size(), 1U);
}

TEST(Metrics, AFloatIsWrittenAsInPython) {
  EXPECT_EQ(python_float(1.0), "1.0");
  EXPECT_EQ(python_float(5e-05), "5e-05");
  EXPECT_EQ(python_float(0.1), "0.1");
  EXPECT_EQ(python_float(1e16), "1e+16");
}

TEST(MetricsTable, IsAlignedToTheRight) {
  MetricsTable table({"Epoch", "Training Loss", "Validation Loss"});
  table.write_line(
      {{"Epoch", "1"}, {"Training Loss", "0.875700"}, {"Validation Loss", "0.282633"}});
  EXPECT_EQ(table.lines(), (std::vector<std::string>{"Epoch  Training Loss  Validation Loss",
                                                     "    1       0.875700         0.282633"}));
}

TrainingPlan plan_of(const ordered_json& banner) {
  nlohmann::json given = golden()["common_arguments"];
  given.update(nlohmann::json(banner["arguments"]));
  auto args = training_arguments_from(given, "golden");
  args.banner = Banner::kV5;
  const std::int64_t examples = banner["samples"][0];
  const auto batch = args.per_device_train_batch_size;
  return TrainingPlan(args, {.num_examples = examples,
                             .batches = (examples + batch - 1) / batch,
                             .accumulation_steps = args.gradient_accumulation_steps,
                             .num_parameters = 15});
}

TEST(TrainingPlan, TheBannersAndTheLinesAtAResumeAreThoseOfTransformers) {
  std::map<std::string, int> compared;
  for (const auto& banner : golden()["banners"]) {
    const std::string call = banner["call"];
    ++compared[call];
    auto lines = banner["lines"].get<std::vector<std::string>>();
    if (call == "train") {
      EXPECT_EQ(plan_of(banner).banner(), lines);
      continue;
    }
    lines[0].erase(0, 1);  // an empty line before it
    EXPECT_EQ(
        evaluation_banner(call == "predict" ? "Prediction" : "Evaluation", banner["samples"][1],
                          banner["arguments"]["per_device_eval_batch_size"]),
        lines);
  }
  for (const auto& run : golden()["runs"]) {
    if (!run.contains("resume_lines")) continue;
    ++compared["resume"];
    EXPECT_EQ(plan_of(run).resume_lines(run["resumes"][1],
                                        run["arguments"].value("ignore_data_skip", false)),
              run["resume_lines"].get<std::vector<std::string>>())
        << run["name"];
  }
  EXPECT_GE(compared["train"], 4);
  EXPECT_EQ(compared["predict"] + compared["evaluate"], 2);
  EXPECT_GE(compared["resume"], 8);
}

TEST(TrainingPlan, TheBannerOfTheTutorial) {
  TrainingArguments args = {.num_train_epochs = 1.0, .per_device_train_batch_size = 64};
  const TrainingPlan plan(args, {.num_examples = 60000, .batches = 938});
  const auto joined = [](const auto& lines) { return fmt::format("{}", fmt::join(lines, "\n")); };
  EXPECT_EQ(joined(plan.banner()), R"(***** Running training *****
  Num examples = 60000
  Num Epochs = 1
  Instantaneous batch size per device = 64
  Total train batch size (w. parallel, distributed & accumulation) = 64
  Gradient Accumulation steps = 1
  Total optimization steps = 938)");
  const TrainingPlan two(args, {.num_examples = 60000, .batches = 469, .num_processes = 2});
  EXPECT_EQ(two.banner().back(), "  Total optimization steps = 469");
  EXPECT_EQ(two.total_batch_size, 128);
  EXPECT_EQ(joined(plan.resume_lines(1000, /*ignores_data_skip=*/false)),
            R"(  Continuing training from checkpoint, will skip to saved global_step
  Continuing training from epoch 1
  Continuing training from global step 1000
  Will skip the first 1 epochs then the first 62 batches in the first epoch.)");
}

TEST(TrainingPlan, RefusesMoreStepsThanAnyTrainingTakes) {
  TrainingArguments args;
  args.num_train_epochs = 1e9;
  EXPECT_ERROR(TrainingPlan(args, {.num_examples = 60000, .batches = 60000}), UsageError,
               "num_train_epochs: expected at most 16666666, as an epoch has 60000 steps");
  args.max_steps = 1'000'000'000;
  args.per_device_train_batch_size = 10'000'000;
  const TrainingPlan plan(args, {.num_examples = 60000,
                                 .batches = 1,
                                 .accumulation_steps = 1'000'000,
                                 .num_processes = 100'000});
  EXPECT_EQ(plan.total_batch_size, 1'000'000'000'000'000'000);
  EXPECT_DOUBLE_EQ(plan.num_train_samples, 1e27);
}

TEST(TrainerState, RefusesCountsOutOfTheirRange) {
  TrainerState state;
  state.global_step = 7;
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto saved = state.state_dict();
    saved[key] = value;
    return state.plan_load(saved, "trainer_state.json");
  };
  const auto huge = std::int64_t{1} << 62;
  for (const char* key : {"global_step", "logging_steps", "eval_steps", "save_steps"}) {
    EXPECT_ERROR(with(key, huge), DataError,
                 "trainer_state.json: expected a whole number from 0 to 1000000000000 as \"",
                 std::string(key) + "\", got 4611686018427387904");
  }
  EXPECT_ERROR(with("epoch", 1e300), DataError, "at most 1000000000 epochs as \"epoch\"");
  EXPECT_ERROR(with("best_global_step", 8), DataError, "from 0 to 7 as \"best_glob");
  EXPECT_ERROR(with("log_history", {{{"step", 8}}}), DataError, "from 0 to 7 as \"step\" in log_h");
  EXPECT_NO_THROW(with("best_global_step", 7));
}

TEST(TrainingPlan, BatchesThatAreDividedCountOnce) {
  TrainingArguments args = {.per_device_train_batch_size = 64};
  args.accelerator_config = {.split_batches = true, .even_batches = false};
  const TrainingPlan plan(args, {.num_examples = 60000, .batches = 938, .num_processes = 3});
  EXPECT_EQ(plan.batch_size, 22);  // 64 = 22 + 21 + 21
  EXPECT_EQ(plan.total_batch_size, 64);
}

}  // namespace
}  // namespace ladder
