// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/trackers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using Json = nlohmann::ordered_json;

class TrackersTest : public testing::Test {
 protected:
  Trackers make(std::vector<std::string> log_with, bool append = false) const {
    return Trackers({.log_with = std::move(log_with), .logging_dir = runs(), .append = append});
  }
  std::string runs() const { return folder_.file("runs"); }
  std::string read(const std::string& name) const { return folder_.read("runs/" + name); }

  TemporaryFolder folder_;
};

TEST_F(TrackersTest, JsonlHasARunRecordAndOneRecordPerStep) {
  auto trackers = make({"jsonl"});
  trackers.start("basic", {{"lr", 0.001}, {"recipe", "basicnet"}, {"quiet", true}});
  trackers.log({{"loss", 0.25}, {"accuracy", 98.0}}, 10);
  EXPECT_EQ(
      read("basic/metrics.jsonl"),
      "{\"record\":\"run\",\"run\":\"basic\",\"config\":{\"lr\":0.001,\"recipe\":\"basicnet\","
      "\"quiet\":true}}\n"
      "{\"record\":\"log\",\"step\":10,\"accuracy\":98.0,\"loss\":0.25}\n");
}

TEST_F(TrackersTest, CsvHasOneLinePerValueAndNewNamesNeedNoNewHeader) {
  auto trackers = make({"csv"});
  trackers.start("basic", {{"lr", 0.001}, {"note", "a,\"b\""}, {"seed", nullptr}});
  trackers.log({{"loss", 0.1}}, 1);
  trackers.log({{"loss", 1e-9}, {"a, \"b\"\nc", 3.0}}, 2);
  EXPECT_EQ(read("basic/metrics.csv"),
            "step,name,value\n1,loss,0.1\n2,\"a, \"\"b\"\"\nc\",3\n2,loss,1e-09\n");
  EXPECT_EQ(read("basic/config.csv"), "name,value\nlr,0.001\nnote,\"a,\"\"b\"\"\"\nseed,null\n");
}

TEST_F(TrackersTest, NumbersThatAreNotFiniteDoNotStopARun) {
  auto trackers = make({"all"});
  trackers.start("basic");
  trackers.log({{"loss", NAN}, {"norm", INFINITY}}, 1);
  EXPECT_NE(read("basic/metrics.jsonl").find("{\"record\":\"log\",\"step\":1,\"loss\":null,"),
            std::string::npos);
  EXPECT_EQ(read("basic/metrics.csv"), "step,name,value\n1,loss,nan\n1,norm,inf\n");
}

TEST_F(TrackersTest, AllMeansTheThreeAndANameTwiceCountsOnce) {
  auto trackers = make({"tensorboard", "all", "tensorboard"});
  trackers.start("basic", {{"lr", 0.1}});
  trackers.log({{"loss", 1.0}}, 1);
  trackers.finish();
  const auto files = std::filesystem::directory_iterator(runs() + "/basic");
  EXPECT_EQ(std::distance(begin(files), end(files)), 4);
  EXPECT_EQ(read("basic/metrics.csv"), "step,name,value\n1,loss,1\n");
}

TEST_F(TrackersTest, TheOtherProcessesWriteNothing) {
  Trackers trackers({.log_with = {"all"}, .logging_dir = runs(), .is_main_process = false});
  trackers.start("basic", {{"lr", 0.1}});
  trackers.log({{"loss", 1.0}}, 1);
  trackers.finish();
  EXPECT_FALSE(std::filesystem::exists(runs()));
}

TEST_F(TrackersTest, AMistakeStopsTheOtherProcessesToo) {
  EXPECT_ERROR(Trackers({.log_with = {"wandb"}, .logging_dir = "x", .is_main_process = false}),
               UsageError, "log_with: expected one of jsonl, csv, tensorboard, got 'wandb'");
  Trackers trackers({.log_with = {"csv"}, .logging_dir = runs(), .is_main_process = false});
  EXPECT_ERROR(trackers.log({{"loss", 1.0}}, 1), UsageError, "log: no run was started");
  EXPECT_ERROR(trackers.start("../basic"), UsageError, "run name: expected");
  EXPECT_ERROR(trackers.start("basic", {{"a", {1, 2}}}), UsageError, "for a, got 'array'");
  trackers.start("basic");
  EXPECT_ERROR(trackers.log({{"step", 1.0}}, 1), UsageError, "got 'step'");
}

TEST_F(TrackersTest, ASecondRunOfANameReplacesItsFiles) {
  for (const double loss : {1.0, 2.0}) {
    auto trackers = make({"jsonl", "csv"});
    trackers.start("basic");
    trackers.log({{"loss", loss}}, 1);
  }
  EXPECT_EQ(read("basic/metrics.csv"), "step,name,value\n1,loss,2\n");
  EXPECT_EQ(read("basic/metrics.jsonl"),
            "{\"record\":\"run\",\"run\":\"basic\",\"config\":{}}\n"
            "{\"record\":\"log\",\"step\":1,\"loss\":2.0}\n");
}

TEST_F(TrackersTest, ARunThatIsResumedAppends) {
  for (const int step : {1, 2}) {
    auto trackers = make({"jsonl", "csv"}, true);
    trackers.start("basic");
    trackers.log({{"loss", 0.5}}, step);
  }
  EXPECT_EQ(read("basic/metrics.csv"), "step,name,value\n1,loss,0.5\n2,loss,0.5\n");
  const std::string run = "{\"record\":\"run\",\"run\":\"basic\",\"config\":{}}\n";
  EXPECT_EQ(read("basic/metrics.jsonl"), run + "{\"record\":\"log\",\"step\":1,\"loss\":0.5}\n" +
                                             run +
                                             "{\"record\":\"log\",\"step\":2,\"loss\":0.5}\n");
}

TEST_F(TrackersTest, AFinishedRunMakesRoomForAnother) {
  auto trackers = make({"jsonl", "tensorboard"});
  trackers.start("one");
  EXPECT_ERROR(trackers.start("two"), UsageError,
               "start: a run has started; hint: call finish() first");
  trackers.finish();
  trackers.finish();
  EXPECT_ERROR(trackers.log({{"loss", 1.0}}, 1), UsageError,
               "log: no run was started; hint: call start() first");
  trackers.start("two");
  trackers.log({{"loss", 1.0}}, 1);
  EXPECT_NE(read("two/metrics.jsonl").find("\"loss\":1.0"), std::string::npos);
}

TEST_F(TrackersTest, ARunMayBeInAFolderOfRuns) {
  auto trackers = make({"csv"});
  trackers.start("mnist/basic");
  EXPECT_EQ(read("mnist/basic/metrics.csv"), "step,name,value\n");
}

TEST_F(TrackersTest, ARunIsInsideTheFolderOfRuns) {
  for (const char* name : {"", "/tmp/x", "..", "a/../../b", ".", "a/"}) {
    auto trackers = make({"csv"});
    EXPECT_ERROR(trackers.start(name), UsageError,
                 "run name: expected the name of a folder in logging_dir, got '");
  }
}

TEST_F(TrackersTest, WithoutAFolderNoTrackerOfTheLibraryCanBe) {
  EXPECT_ERROR(Trackers({.log_with = {"csv"}}), UsageError,
               "log_with csv: expected logging_dir, the folder to write to, not set");
}

TEST_F(TrackersTest, AFolderThatCannotBeMadeIsASystemError) {
  folder_.write("runs", "a file");
  auto trackers = make({"csv"});
  EXPECT_ERROR(trackers.start("basic"), SystemError, "runs/basic: create the folder: Not a dir");
}

TEST_F(TrackersTest, AFullDiskIsASystemError) {
  std::filesystem::create_directories(runs() + "/basic");
  std::filesystem::create_symlink("/dev/full", runs() + "/basic/metrics.csv");
  auto trackers = make({"csv"});
  EXPECT_ERROR(
      {
        trackers.start("basic");
        trackers.log({{"loss", 1.0}}, 1);
      },
      SystemError, "metrics.csv: write: No space left on device");
}

TEST_F(TrackersTest, NoneDoNothing) {
  Trackers trackers;
  trackers.log({{"loss", 1.0}}, 1);
  trackers.start("basic");
  trackers.finish();
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(TrackersTest, NoValuesAreNoRecord) {
  auto trackers = make({"jsonl"});
  trackers.start("basic");
  trackers.log({}, 1);
  EXPECT_EQ(read("basic/metrics.jsonl"), "{\"record\":\"run\",\"run\":\"basic\",\"config\":{}}\n");
}

// Records its calls.
class Listener : public Tracker {
 public:
  explicit Listener(std::vector<std::string>& heard) : heard_(heard) {}
  std::string name() const override { return "listener"; }
  void start(const TrackedRun& run, const Json& config) override {
    heard_.push_back("start " + run.name + " in '" + run.folder + "' " + config.dump());
  }
  void log(const std::map<std::string, double>& values, std::int64_t step) override {
    heard_.push_back(std::to_string(step) + ": " + values.begin()->first);
  }
  void finish() override { heard_.emplace_back("finish"); }

 private:
  std::vector<std::string>& heard_;
};

TEST_F(TrackersTest, ATrackerOfTheCallersOwnGetsAllCallsAndNeedsNoFolder) {
  std::vector<std::string> heard;
  Trackers trackers;
  trackers.add(std::make_unique<Listener>(heard));
  trackers.start("basic", {{"lr", 0.5}});
  trackers.log({{"loss", 1.0}}, 7);
  trackers.finish();
  EXPECT_EQ(heard,
            (std::vector<std::string>{"start basic in '' {\"lr\":0.5}", "7: loss", "finish"}));
}

}  // namespace
}  // namespace ladder
