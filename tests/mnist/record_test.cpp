// SPDX-License-Identifier: Apache-2.0
#include "mnist/record.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/unique_fd.h"
#include "ladder/nn/state_dict.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_modules.h"
#include "tests/support/temporary_folder.h"

namespace mnist {
namespace {

using namespace ladder;

using Json = nlohmann::ordered_json;

struct Digits : ladder::Dataset {
  explicit Digits(std::int64_t number) : count(number) {}
  std::int64_t size() const override { return count; }
  std::string description() const override { return "MNIST train, 60000 images"; }
  Batch get_batch(std::span<const std::int64_t> /*indices*/) const override { return {}; }

  std::int64_t count;
};

RunSetup setup_of_two_threads() { return {.threads = {2, "requested"}}; }

void begin(Record& record, const torch::nn::Module& model) {
  const DataLoader train(std::make_shared<Digits>(6), {.batch_size = 3});
  const DataLoader test(std::make_shared<Digits>(8), {.batch_size = 8});
  record.begin(setup_of_two_threads(), train, test, model);
}

// A stage: epochs of two steps with losses 1 and 4, and a test.
void run_through(Record& record, const OneWeight& model, std::int64_t epochs = 2) {
  TrainingMonitor monitor({.quiet = true}, setup_of_two_threads(), model, 2);
  begin(record, model);
  for (std::int64_t epoch = 1; epoch <= epochs; ++epoch) {
    monitor.begin_epoch(epoch, epochs);
    monitor.step(batch_of(2), torch::tensor(1.0F));
    monitor.step(batch_of(4), torch::tensor(4.0F));
    record.epoch(monitor.end_epoch());
  }
  monitor.end_training();
  record.result({.correct = 6, .seen = 8, .loss_sum = 2.0, .misclassified = {{1, 7}, {4, 0}}},
                monitor.totals(), model);
}

struct Output {
  std::string standard_output;
  std::string standard_error;
  std::vector<Json> records;
};

Output output_of(const Recipe& recipe, RecordOptions options = {.quiet = true}) {
  const TemporaryFolder folder;
  options.stage = "stage0_single_gpu";
  options.metrics = folder.file("run.jsonl");
  options.flags = {{"--threads", "2"}};
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Record record(options, recipe);
  run_through(record, OneWeight(), recipe.epochs());
  Output output{testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr(), {}};
  std::istringstream lines(folder.read("run.jsonl"));
  for (std::string line; std::getline(lines, line);) output.records.push_back(Json::parse(line));
  return output;
}

void expect_values(const Json& record, const Json& expected) {
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(record.at(key), value) << key;
}

void expect_result(const Json& result) {
  expect_values(result, {{"record", "result"},
                         {"precision", "fp32"},
                         {"epochs", 2},
                         {"steps", 4},
                         {"accuracy", 75.0},
                         {"correct", 6},
                         {"seen", 8},
                         {"train_loss", 3.0},
                         {"eval_loss", 0.25},
                         {"misclassified", {{1, 7}, {4, 0}}},
                         {"weights_sha256", weights_sha256(state_dict(OneWeight()))}});
  for (const char* key : {"stage", "recipe", "world_size", "device", "first_step_at",
                          "warm_up_seconds", "samples_per_second", "sent_bytes"}) {
    EXPECT_TRUE(result.contains(key)) << key << ", which reports rely on";
  }
  EXPECT_EQ(result.at("read_bytes").size(), 1U) << "one per rank";
  EXPECT_LE(result.at("train_seconds").get<double>(), result.at("total_seconds").get<double>());
  EXPECT_GT(result.at("peak_rss_bytes").get<std::int64_t>(), 0);
}

TEST(Record, WritesAHeaderARecordAnEpochAndAResult) {
  const auto records = output_of(Recipe({.epochs = 2, .lr = 0.25, .seed = 7})).records;
  ASSERT_EQ(records.size(), 4U);
  const Json& header = records[0];
  expect_values(header, {{"record", "run"},
                         {"stage", "stage0_single_gpu"},
                         {"recipe", "basicnet"},
                         {"world_size", 1},
                         {"device", "cpu"},
                         {"threads", 2},
                         {"parameters", 3},
                         {"data", "MNIST train, 60000 images"},
                         {"epochs", 2},
                         {"batch_size", 64},
                         {"lr", 0.25},
                         {"seed", 7},
                         {"options", {{"--threads", "2"}}}});
  EXPECT_TRUE(header.at("versions").contains("ladder") &&
              header.at("versions").contains("libtorch"));
  for (const std::size_t epoch : {1U, 2U}) {
    const Json& record = records[epoch];
    expect_values(record, {{"record", "epoch"},
                           {"epoch", epoch},
                           {"steps", 2},
                           {"samples", 6},
                           {"train_loss", 3.0}});  // (2 · 1 + 4 · 4) / 6
    EXPECT_GE(record.at("seconds").get<double>(), 0.0);
    EXPECT_GT(record.at("samples_per_second").get<double>(), 0.0);
  }
  expect_result(records[3]);
}

TEST(Record, PrintsTheResultLinesAndOnTheErrorStreamWhatIsAboutToRunUnlessQuiet) {
  const Output output = output_of(Recipe({.epochs = 2}));
  EXPECT_TRUE(
      std::regex_match(output.standard_output,
                       std::regex("Accuracy: 75\\.00\ntime elapsed: \\d+\\.\\d\\d seconds\n")))
      << output.standard_output;
  EXPECT_EQ(output.standard_error, "");
  const Output convnet = output_of(Recipe({.name = "convnet", .epochs = 2}));
  EXPECT_TRUE(convnet.standard_output.starts_with("Accuracy is 75.00%\ntime elapsed: "))
      << convnet.standard_output;
  const Output loud = output_of(Recipe({.epochs = 2}), {.quiet = false});
  EXPECT_TRUE(loud.standard_error.starts_with(
      "stage0_single_gpu: basicnet with 3 parameters on cpu, 2 threads (requested), "
      "MNIST train, 60000 images\n"))
      << loud.standard_error;
  testing::internal::CaptureStdout();
  Record record({.quiet = true}, Recipe({.epochs = 2}));  // without a file
  run_through(record, OneWeight());
  EXPECT_TRUE(testing::internal::GetCapturedStdout().starts_with("Accuracy: 75.00\n"));
}

TEST(Record, WritesThousandsWithCommas) {
  struct Large : torch::nn::Module {
    Large() { register_parameter("weight", torch::empty({1199882})); }
  };
  testing::internal::CaptureStderr();
  Record record({}, Recipe({}));
  begin(record, Large());
  EXPECT_NE(testing::internal::GetCapturedStderr().find("1,199,882 parameters"), std::string::npos);
}

TEST(Record, SaysThePrecisionAndTakesFurtherNumbers) {
  const TemporaryFolder folder;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  {
    Record record({.metrics = folder.file("run.jsonl")}, Recipe({}));
    const DataLoader loader(std::make_shared<Digits>(8));
    record.begin({.precision = Precision::kBf16, .threads = {1, "requested"}}, loader, loader,
                 OneWeight());
    record.result({.correct = 6, .seen = 8}, {}, OneWeight(), {{"loss_scale", 65536.0}});
  }
  testing::internal::GetCapturedStdout();
  EXPECT_NE(testing::internal::GetCapturedStderr().find("on cpu in bf16, 1 thread (requested)"),
            std::string::npos);
  std::istringstream lines(folder.read("run.jsonl"));
  std::string header;
  std::string result;
  std::getline(lines, header);
  std::getline(lines, result);
  EXPECT_EQ(Json::parse(header).at("precision"), "bf16");
  EXPECT_EQ(Json::parse(result).at("precision"), "bf16");
  EXPECT_EQ(Json::parse(result).at("loss_scale"), 65536.0);
}

// The weights are saved between the two.
TEST(Record, AMetricsFileThatFailsEndsTheRunWithTheResult) {
  EXPECT_ERROR(Record({.metrics = "/nonexistent/run.jsonl"}, Recipe({})), UsageError,
               "/nonexistent/run.jsonl");
  const TemporaryFolder folder;
  const auto path = folder.file("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto old_handler = std::signal(SIGPIPE, SIG_IGN);
  UniqueFd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK));
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Record record({.metrics = path, .quiet = true}, Recipe({}));
  begin(record, OneWeight());
  reader.reset();
  record.epoch({});
  record.epoch({});
  const Evaluation evaluation{.correct = 6, .seen = 8};
  EXPECT_THROW(record.result(evaluation, {}, OneWeight()), SystemError);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: " + path + ": write: Broken pipe\n");
  EXPECT_TRUE(testing::internal::GetCapturedStdout().starts_with("Accuracy: 75.00\n"));
  std::signal(SIGPIPE, old_handler);
}

}  // namespace
}  // namespace mnist
