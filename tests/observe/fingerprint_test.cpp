// SPDX-License-Identifier: Apache-2.0
#include "ladder/observe/fingerprint.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/optim/sgd.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_modules.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& item : object.items()) keys.push_back(item.key());
  return keys;
}

// One parameter with a gradient, one without, a buffer.
struct Inner : IdleModel {
  Inner() {
    weight = register_parameter("weight", torch::ones({2}));
    weight.mutable_grad() = torch::full({2}, 3.0F);
    register_parameter("unused", torch::ones({1}));
    register_buffer("mean", torch::full({}, 0.5F));
  }
  torch::Tensor weight;
};

Batch sample_batch() {
  return {.targets = torch::zeros({3}, torch::kInt64), .positions = torch::arange(3), .epoch = 4};
}

std::vector<Json> recorded(std::int64_t interval, std::int64_t steps) {
  const TemporaryFolder folder;
  Fingerprint fingerprint(folder.file("a.jsonl"), interval, /*rank=*/1, /*world_size=*/3);
  const Wrapper model(std::make_shared<Inner>());
  for (std::int64_t step = 1; step <= steps; ++step) {
    fingerprint.record(step, sample_batch(), torch::tensor(0.5F), model);
  }
  return lines_of(folder.read("a.jsonl"));
}

TEST(Fingerprint, WritesALineEveryIntervalSteps) {
  std::vector<std::int64_t> steps;
  for (const auto& line : recorded(/*interval=*/2, /*steps=*/7)) steps.push_back(line.at("step"));
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 4, 6}));
  EXPECT_EQ(recorded(1, 7).size(), 7U);
  EXPECT_TRUE(recorded(10, 7).empty());
}

// The hashes are from Python: hashlib.sha256(struct.pack("<f", 0.5)).hexdigest()[:16] and so on.
// Names are those without the wrapper; a gradient that is missing has none.
TEST(Fingerprint, HoldsTheHashesOfAllThatAStepConsistsOf) {
  Json line = recorded(1, 1).at(0);
  EXPECT_EQ(keys_of(line.at("weights")), (std::vector<std::string>{"mean", "unused", "weight"}));
  line.at("weights").erase("unused");
  line.at("sketches").at("weights").erase("unused");
  EXPECT_EQ(line.at("random").get<std::string>().size(), 16U);
  line.erase("random");
  EXPECT_EQ(line, (Json{{"step", 1},
                        {"epoch", 5},  // counts from 1
                        {"rank", 1},
                        {"world_size", 3},
                        {"positions", "ab25350e3e65efeb"},
                        {"loss", "d99e58435243d9fe"},
                        {"loss_value", 0.5},
                        {"gradients", {{"weight", "0f9e0aa006f3782e"}}},
                        {"sketches",
                         {{"gradients", {{"weight", {std::sqrt(18.0), -6.0, 0.0, 0.0, 6.0}}}},
                          {"weights",
                           {{"mean", {0.5, -0.5, 0.5, 0.5, 0.5}},
                            {"weight", {std::sqrt(2.0), -2.0, 0.0, 0.0, 2.0}}}}}},
                        {"weights", {{"mean", "d99e58435243d9fe"}, {"weight", "80b8fd6d60fa85fd"}}},
                        {"global_size", 0},
                        {"losses", {0.5}}}));
}

// Two backward passes, of which the second one doubles the gradient before it is averaged: the sum
// of both is recorded, and what the program makes of it. Sketches and hashes of rows are those of
// tools/record_run.py.
TEST(Fingerprint, RecordsTheStartTheSamplesAndTheGradientsBeforeTheyAreAveraged) {
  const TemporaryFolder folder;
  Fingerprint fingerprint(folder.file("a.jsonl"), 2, /*rank=*/0, /*world_size=*/1);
  const Inner model;
  fingerprint.watch(model, 4);
  const auto backward = [&](double factor) { (model.weight * factor).sum().backward(); };
  Batch batch = sample_batch();
  batch.indices = torch::tensor({7, 8, 9}, torch::kInt64);
  batch.inputs = torch::arange(6, torch::kFloat32).view({3, 2});
  backward(5.0);  // of step 5, which is not recorded
  fingerprint.record(5, batch, torch::tensor(0.5F), model);
  for (const double factor : {1.0, 2.0}) backward(factor);
  fingerprint.add(batch, torch::tensor(0.25F));
  fingerprint.record(6, batch, torch::tensor(0.5F), model, {.rates = {0.1}, .scale = 4.0});
  batch.indices = torch::empty({0}, torch::kInt64);  // an empty part of a short batch
  batch.inputs = torch::empty({0, 2});
  fingerprint.record(8, batch, torch::tensor(0.5F), model);
  const auto lines = lines_of(folder.read("a.jsonl"));
  const auto& line = lines.at(0);
  for (const char* name : {"samples", "rows"}) EXPECT_EQ(lines.at(1).at(name), Json::array());
  EXPECT_EQ(line.at("sketches").at("local"), (Json{{"weight", {-6.0, 0.0, 0.0, 6.0}}}));
  EXPECT_EQ(line.at("losses"), (Json{0.25, 0.5}));
  EXPECT_EQ(line.at("samples"), (Json{7, 8, 9, 7, 8, 9}));
  EXPECT_EQ(line.at("rows").size(), 6U);
  EXPECT_EQ(line.at("rows")[0], "22b6f43b");
  EXPECT_EQ(line.at("rows")[5], "84c4426d");
  EXPECT_EQ(line.at("rates"), (Json{0.1}));
  EXPECT_EQ(line.at("scale"), 4.0);
  EXPECT_EQ(line.at("before").at("step"), 4);
  EXPECT_EQ(line.at("before").at("weights"), line.at("weights"));
}

TEST(Fingerprint, HasTheLearningRatesOfAnOptimizerThatItDoesNotKnow) {
  const TemporaryFolder folder;
  Fingerprint fingerprint(folder.file("a.jsonl"), 2, /*rank=*/0, /*world_size=*/1);
  Inner model;
  SGD optimizer(model.parameters(), SgdOptions{.lr = 0.5});
  fingerprint.watch(model);
  for (int step = 1; step <= 2; ++step) {
    model.weight.sum().backward();
    optimizer.step();
    fingerprint.record(step, sample_batch(), torch::tensor(0.5F), model);
    optimizer.param_groups().at(0).options().set_lr(0.25);
  }
  EXPECT_EQ(lines_of(folder.read("a.jsonl")).at(0).at("rates"), (Json{0.25}));
}

// Of 64 bytes and of 8; from Python, as above.
TEST(Fingerprint, WithMicroBatchesHasTheHashOfThePositionsOfEach) {
  const TemporaryFolder folder;
  Fingerprint fingerprint(folder.file("a.jsonl"), 1, /*rank=*/1, /*world_size=*/3);
  Batch batch = sample_batch();
  batch.positions = torch::arange(8, 17);
  batch.micro_batch = 8;
  fingerprint.record(1, batch, torch::tensor(0.5, torch::kDouble), Inner());
  batch.positions = torch::empty({0}, torch::kInt64);
  fingerprint.record(2, batch, torch::tensor(0.0, torch::kDouble), Inner());
  const auto lines = lines_of(folder.read("a.jsonl"));
  EXPECT_EQ(lines.at(0).at("micro_batch"), 8);
  EXPECT_EQ(lines.at(0).at("positions_of_micro_batches"),
            (Json{"7bf45b3102b57d4a", "5eb6da0e0e522104"}));
  EXPECT_EQ(lines.at(1).at("positions_of_micro_batches"), Json::array());
}

TEST(Fingerprint, HasAFileARankBesideTheMetrics) {
  EXPECT_EQ(Fingerprint::path_beside("runs/a.jsonl", 0), "runs/a.rank0.jsonl");
  EXPECT_EQ(Fingerprint::path_beside("runs/a.json", 12), "runs/a.json.rank12.jsonl");
  EXPECT_ERROR(Fingerprint("/tmp/a.jsonl", 0, 0, 1), UsageError,
               "fingerprint: expected a number > 0, got 0");
  EXPECT_ERROR(Fingerprint("/tmp/a.jsonl", -5, 0, 1), UsageError, "got -5");
  EXPECT_ERROR(Fingerprint("/nonexistent/a.jsonl", 1, 0, 1), UsageError, "/nonexistent/a.jsonl");
}

}  // namespace
}  // namespace ladder
