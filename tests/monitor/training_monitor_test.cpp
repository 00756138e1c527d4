// SPDX-License-Identifier: Apache-2.0
#include "ladder/monitor/training_monitor.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ladder/core/clock.h"
#include "ladder/core/error.h"
#include "ladder/exact/exact_data_parallel.h"
#include "ladder/launch/signals.h"
#include "ladder/monitor/run_settings.h"
#include "tests/support/captured_stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_modules.h"
#include "tests/support/small_net.h"
#include "tests/support/step_notes.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

// Epochs of two steps with losses 1 and 4.
TrainingTotals totals_of(std::int64_t epochs, MonitorOptions options = {.quiet = true}) {
  const OneWeight model;
  TrainingMonitor monitor(std::move(options), {}, model, 2);
  for (std::int64_t epoch = 1; epoch <= epochs; ++epoch) {
    monitor.begin_epoch(epoch, epochs);
    monitor.step(batch_of(2), torch::tensor(1.0F));
    monitor.step(batch_of(4), torch::tensor(4.0F));
    const auto summary = monitor.end_epoch();
    EXPECT_EQ(summary.epoch, epoch);
    EXPECT_EQ(summary.steps, 2);
    EXPECT_EQ(summary.samples, 6);
    EXPECT_EQ(summary.train_loss, 3.0);  // (2 · 1 + 4 · 4) / 6
    EXPECT_GE(summary.seconds, 0.0);
  }
  monitor.end_training();
  return monitor.totals();
}

TEST(TrainingMonitor, CountsStepsSamplesAndTheLastLoss) {
  const auto totals = totals_of(3);
  EXPECT_EQ(totals.steps, 6);
  EXPECT_EQ(totals.samples, 18);
  EXPECT_EQ(totals.train_loss, 3.0);
}

TEST(TrainingMonitor, WritesATraceAndFingerprintsAndWarnsOfThoseThatNoStepReached) {
  const TemporaryFolder folder;
  const auto warning = [&](std::int64_t epochs, const MonitorOptions& options) {
    testing::internal::CaptureStderr();
    totals_of(epochs, options);
    return testing::internal::GetCapturedStderr();
  };
  MonitorOptions options{.trace = folder.file("a.json"), .quiet = true};
  EXPECT_EQ(warning(1, options), "warning: trace: nothing was recorded: it begins with step 4\n");
  EXPECT_TRUE(folder.names().empty());
  EXPECT_EQ(warning(3, options), "");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a.json"});
  options = {.fingerprint = 3, .fingerprint_beside = folder.file("b.jsonl"), .quiet = true};
  EXPECT_EQ(warning(1, options),
            "warning: fingerprint: nothing was recorded: it begins with step 3\n");
  EXPECT_EQ(warning(2, options), "");
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"a.json", "b.rank0.jsonl"}));
}

TEST(TrainingMonitor, CountsStepsOfTheOptimizerAndBatchesFromTheFirstOfTheEpoch) {
  const OneWeight model;
  TrainingMonitor monitor({.quiet = true}, {}, model, 6);
  EXPECT_EQ(monitor.batches_done(), 0);
  monitor.begin_epoch(2, 3, /*done=*/2);
  EXPECT_EQ(monitor.batches_done(), 2);
  for (const bool updated : {false, true, false, true}) {
    monitor.step(batch_of(1), torch::tensor(1.0F), updated);
    EXPECT_EQ(monitor.every(1), updated);
    EXPECT_EQ(monitor.every(2), updated && monitor.steps() == 2);
    EXPECT_FALSE(monitor.every(0));
  }
  EXPECT_EQ(monitor.batches_done(), 6);
  EXPECT_EQ(monitor.steps(), 2);
  EXPECT_EQ(monitor.end_epoch().steps, 4) << "batches";
  EXPECT_EQ(monitor.batches_done(), 0);
}

// Without the usual observers.
TEST(TrainingMonitor, PassesStepsToItsObserversAndSavesAfterAVerdict) {
  const OneWeight model;
  std::string saved;
  const RunSetup setup{.checkpoints = {.save = [&] { return saved = "out"; }}};
  TrainingMonitor monitor({}, setup, model, 4, [](auto&&...) {});
  const auto first = std::make_shared<StepNotes>(/*last_step=*/2);
  const auto second = std::make_shared<StepNotes>();
  monitor.observe(first);
  monitor.observe(second);
  monitor.begin_epoch(2, 3, /*done=*/1);
  monitor.step(batch_of(1), torch::tensor(1.0F));
  monitor.step(batch_of(2), torch::tensor(std::nan("")), /*updated=*/false);
  EXPECT_TRUE(std::isnan(monitor.end_epoch().train_loss)) << "no LossGuard";
  monitor.begin_epoch(3, 3);
  EXPECT_EQ(saved, "");
  EXPECT_THROW(monitor.step(batch_of(1), torch::tensor(1.0F)), StoppedBySignal);
  EXPECT_EQ(saved, "out");
  monitor.end_training();
  const std::vector<std::string> notes = {"epoch 2/3, 3 batches after step 0",
                                          "step 1, batch 1, sample 1",
                                          "part of step 2, batch 2, sample 3",
                                          "end of epoch",
                                          "epoch 3/3, 4 batches after step 1",
                                          "interrupt",
                                          "end"};
  EXPECT_EQ(second->notes, notes);
  auto with_last = notes;
  with_last.insert(with_last.end() - 2, "step 2, batch 1, sample 1");
  EXPECT_EQ(first->notes, with_last);
}

TEST(TrainingMonitor, RefusesStepsOutsideAnEpochEpochsWithoutBatchesAndOptionsWithoutAFile) {
  const OneWeight model;
  TrainingMonitor monitor({.quiet = true}, {}, model, 2);
  EXPECT_ERROR(monitor.step(batch_of(2), torch::tensor(1.0F)), UsageError,
               "TrainingMonitor::step: no epoch has begun");
  EXPECT_ERROR(monitor.end_epoch(), UsageError, "TrainingMonitor::end_epoch: no epoch has begun");
  TrainingMonitor of_nothing({.quiet = true}, {}, model, 0);
  EXPECT_ERROR(of_nothing.begin_epoch(1, 1), DataError,
               "training data: expected at least one batch per epoch, got none");
  EXPECT_ERROR(TrainingMonitor({.fingerprint = 1}, {}, model, 2), UsageError,
               "fingerprint: expected fingerprint_beside, a file to write beside");
  EXPECT_ERROR(TrainingMonitor({.fingerprint = -1, .fingerprint_beside = "a.jsonl"}, {}, model, 2),
               UsageError, "fingerprint: expected a number > 0, got -1");
}

TEST(TrainingMonitor, RefusesOtherMicroBatchesThanThoseOfTheModel) {
  const ExactDataParallel exact(small_net(), ProcessGroup::single(), {.micro_batch = 4});
  TrainingMonitor monitor({.quiet = true}, {}, exact, 2);
  monitor.begin_epoch(1, 1);
  auto batch = batch_of(8);
  EXPECT_ERROR(monitor.step(batch, torch::tensor(1.0F)), UsageError,
               "a model with micro-batches of 4: the batches have no micro-batches");
  batch.micro_batch = 4;
  monitor.step(batch, torch::tensor(1.0F));
  const OneWeight other;
  TrainingMonitor fast({.quiet = true}, {}, other, 2);
  fast.begin_epoch(1, 1);
  EXPECT_ERROR(fast.step(batch, torch::tensor(1.0F)), UsageError,
               "a model with no micro-batches: the batches have micro-batches of 4");
}

TEST(TrainingMonitor, MeasuresTheFirstStepAndTheWarmUp) {
  const double before = steady_seconds();
  const auto few = totals_of(9);
  EXPECT_GE(few.first_step_at, before);
  EXPECT_LE(few.first_step_at, steady_seconds());
  EXPECT_TRUE(std::isnan(few.warm_up_seconds)) << "18 steps";
  const auto many = totals_of(11);  // 22 steps
  EXPECT_GT(many.warm_up_seconds, 0.0);
  EXPECT_LT(many.warm_up_seconds, many.train_seconds);
}

TEST(TrainingMonitor, PrintsTheLinesThatItIsGivenUnlessQuiet) {
  for (const bool quiet : {false, true}) {
    testing::internal::CaptureStdout();
    totals_of(2, {.progress = false,
                  .quiet = quiet,
                  .epoch_line = "begin training of epoch {epoch}/{epochs}",
                  .testing_line = "begin testing"});
    EXPECT_EQ(
        testing::internal::GetCapturedStdout(),
        quiet ? "" : "begin training of epoch 1/2\nbegin training of epoch 2/2\nbegin testing\n");
  }
}

TEST(TrainingMonitor, GoesOnFromItsState) {
  const OneWeight model;
  TrainingMonitor first({.quiet = true}, {}, model, 2);
  first.begin_epoch(1, 1);
  first.step(batch_of(3), torch::tensor(1.0F));
  const auto state = first.state_dict();
  EXPECT_EQ(state.at("steps"), 1);
  EXPECT_EQ(state.at("samples"), 3);
  EXPECT_GT(state.at("train_seconds").get<double>(), 0.0);

  TrainingMonitor second({.quiet = true}, {}, model, 2);
  const auto read = nlohmann::json::parse(state.dump());
  const auto load = second.plan_load(read, "state.json");
  EXPECT_EQ(second.steps(), 0) << "nothing is changed yet";
  load();
  EXPECT_EQ(second.steps(), 1);
  EXPECT_EQ(second.totals().samples, 3);
  EXPECT_ERROR(second.plan_load({{"steps", -1}}, "state.json"), DataError, "state.json");
  EXPECT_ERROR(second.plan_load({{"steps", std::int64_t{1} << 62}}, "state.json"), DataError,
               "state.json: expected a whole number from 0 to 1000000000000 as \"steps\", got");
}

TEST(TrainingMonitor, SavesItsSettingsAndRefusesOthers) {
  const OneWeight model;
  const auto monitor_with = [&](const std::string& head) {
    const MonitorOptions options{.quiet = true, .settings = {{"--head", head}}};
    return TrainingMonitor(options, {}, model, 2);
  };
  const auto state = monitor_with("logits").state_dict();
  EXPECT_EQ(state.at("settings"), nlohmann::json({{"--head", "logits"}, {"precision", "fp32"}}));
  EXPECT_NO_THROW(monitor_with("logits").plan_load(state, "state.json"));
  EXPECT_ERROR(
      monitor_with("log-softmax").plan_load(state, "state.json"), UsageError,
      "state.json: it was written with --head=logits, and this run has --head=log-softmax");
}

const RunSettings kSettings = {{"--head", "logits"},
                               {"--batch-size", "64", Effect::kTraining},
                               {"--lr", "0.1", Effect::kOptimizer}};

std::string log_of(const nlohmann::json& saved, const RunSettings& own = kSettings) {
  CapturedStream stream;
  compare_settings(saved, own, "c/custom.json", Log({.stream = stream.get()}));
  return stream.text();
}

TEST(RunSettings, AreReportedWhereTheyDiffer) {
  EXPECT_EQ(log_of(settings_to_json(kSettings)), "");
  EXPECT_EQ(log_of({{"--batch-size", "32"}}),
            "c/custom.json: --batch-size was 32, and is 64 from here on\n");
  EXPECT_EQ(log_of({{"--new", "1"}}), "") << "only one side has it";
  EXPECT_EQ(log_of({{"--head", "other"}}, {}), "");
  EXPECT_EQ(log_of(nullptr), "c/custom.json: written without settings, so none were compared\n");
  // The state of the optimizer has it: a resume reports it there.
  EXPECT_EQ(settings_of_ranks(kSettings).at("--lr"), "0.1");
  EXPECT_EQ(settings_to_json(kSettings).at("--lr"), "0.1");
  EXPECT_EQ(log_of({{"--lr", "0.2"}}), "");
}

TEST(RunSettings, ThatMustStayOrAreDamagedAreRefused) {
  EXPECT_ERROR(log_of({{"--head", "log-softmax"}}), UsageError,
               "c/custom.json: it was written with --head=log-softmax, and this run has "
               "--head=logits; hint: resume with --head=log-softmax, or begin a new run and load "
               "c/model.safetensors");
  EXPECT_ERROR(log_of(nlohmann::json::array()), DataError,
               "expected an object as settings, got []");
  EXPECT_ERROR(log_of({{"--head", 3}}), DataError,
               "expected a text as \"--head\" as settings, got 3");
}

}  // namespace
}  // namespace ladder
