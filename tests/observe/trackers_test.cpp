// SPDX-License-Identifier: Apache-2.0
#include "ladder/observe/trackers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/observe/event_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using Json = nlohmann::ordered_json;
using std::string_literals::operator""s;

constexpr const char* kRunRecord = "{\"record\":\"run\",\"run\":\"basic\",\"config\":{}}\n";

class TrackersTest : public testing::Test {
 protected:
  Trackers make(std::vector<std::string> log_with, bool append = false) const {
    return Trackers({.log_with = std::move(log_with), .logging_dir = runs(), .append = append});
  }
  // A run in which `values` are logged.
  void log(std::vector<std::string> log_with, const std::map<std::string, double>& values,
           std::int64_t step = 1, bool append = false) const {
    auto trackers = make(std::move(log_with), append);
    trackers.start("basic");
    trackers.log(values, step);
    trackers.finish();
  }
  std::string runs() const { return folder_.file("runs"); }
  std::string read(const std::string& name) const { return folder_.read("runs/" + name); }

  TemporaryFolder folder_;
};

TEST_F(TrackersTest, JsonlHasARunRecordAndOneRecordPerStep) {
  auto trackers = make({"jsonl"});
  trackers.start("basic", {{"lr", 0.001}, {"recipe", "basicnet"}, {"quiet", true}});
  trackers.log({{"loss", 0.25}, {"accuracy", 98.0}}, 10);
  trackers.log({}, 11);  // no values, no record
  EXPECT_EQ(
      read("basic/metrics.jsonl"),
      "{\"record\":\"run\",\"run\":\"basic\",\"config\":{\"lr\":0.001,\"recipe\":\"basicnet\","
      "\"quiet\":true}}\n"
      "{\"record\":\"log\",\"step\":10,\"accuracy\":98.0,\"loss\":0.25}\n");
}

TEST_F(TrackersTest, CsvHasOneLinePerValueAndNewNamesNeedNoNewHeader) {
  auto trackers = make({"csv"});
  trackers.start("mnist/basic", {{"lr", 0.001}, {"note", "a,\"b\""}, {"seed", nullptr}});
  trackers.log({{"loss", 0.1}}, 1);
  trackers.log({{"loss", 1e-9}, {"a, \"b\"\nc", 3.0}}, 2);
  EXPECT_EQ(read("mnist/basic/metrics.csv"),
            "step,name,value\n1,loss,0.1\n2,\"a, \"\"b\"\"\nc\",3\n2,loss,1e-09\n");
  EXPECT_EQ(read("mnist/basic/config.csv"),
            "name,value\nlr,0.001\nnote,\"a,\"\"b\"\"\"\nseed,null\n");
}

TEST_F(TrackersTest, NumbersThatAreNotFiniteDoNotStopARun) {
  log({"all"}, {{"loss", NAN}, {"norm", INFINITY}});
  EXPECT_NE(read("basic/metrics.jsonl").find("{\"record\":\"log\",\"step\":1,\"loss\":null,"),
            std::string::npos);
  EXPECT_EQ(read("basic/metrics.csv"), "step,name,value\n1,loss,nan\n1,norm,inf\n");
}

TEST_F(TrackersTest, AllMeansTheThreeAndANameTwiceCountsOnce) {
  log({"tensorboard", "all", "tensorboard"}, {{"loss", 1.0}});
  const auto files = std::filesystem::directory_iterator(runs() + "/basic");
  EXPECT_EQ(std::distance(begin(files), end(files)), 4);
  EXPECT_EQ(read("basic/metrics.csv"), "step,name,value\n1,loss,1\n");
}

TEST_F(TrackersTest, TheOtherProcessesAndNoTrackersWriteNothing) {
  Trackers none;
  Trackers other({.log_with = {"all"}, .logging_dir = runs(), .is_main_process = false});
  for (Trackers* const trackers : {&none, &other}) {
    trackers->start("basic", {{"lr", 0.1}});
    trackers->log({{"loss", 1.0}}, 1);
    trackers->finish();
  }
  Trackers().log({{"loss", 1.0}}, 1);
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(TrackersTest, AMistakeStopsTheOtherProcessesToo) {
  EXPECT_ERROR(Trackers({.log_with = {"wandb"}, .logging_dir = "x", .is_main_process = false}),
               UsageError, "log_with: expected one of jsonl, csv, tensorboard, got 'wandb'");
  EXPECT_ERROR(Trackers({.log_with = {"csv"}, .is_main_process = false}), UsageError,
               "log_with csv: expected logging_dir");
  Trackers trackers({.log_with = {"csv"}, .logging_dir = runs(), .is_main_process = false});
  EXPECT_ERROR(trackers.log({{"loss", 1.0}}, 1), UsageError, "log: no run was started");
  for (const char* name : {"", "/tmp/x", "..", "../basic", "a/../../b", ".", "a/"}) {
    EXPECT_ERROR(trackers.start(name), UsageError, "run name: expected the name of a folder in ");
  }
  EXPECT_ERROR(trackers.start("basic", {{"a", {1, 2}}}), UsageError, "for a, got 'array'");
  trackers.start("basic");
  EXPECT_ERROR(trackers.log({{"step", 1.0}}, 1), UsageError, "got 'step'");
}

TEST_F(TrackersTest, ASecondRunOfANameReplacesItsFilesAndAResumedOneAppends) {
  log({"jsonl", "csv"}, {{"loss", 1.0}});
  log({"jsonl", "csv"}, {{"loss", 2.0}});
  const auto csv = "step,name,value\n1,loss,2\n"s;
  const auto jsonl = kRunRecord + "{\"record\":\"log\",\"step\":1,\"loss\":2.0}\n"s;
  EXPECT_EQ(read("basic/metrics.csv"), csv);
  EXPECT_EQ(read("basic/metrics.jsonl"), jsonl);
  log({"jsonl", "csv"}, {{"loss", 0.5}}, 2, /*append=*/true);
  EXPECT_EQ(read("basic/metrics.csv"), csv + "2,loss,0.5\n");
  EXPECT_EQ(read("basic/metrics.jsonl"),
            jsonl + kRunRecord + "{\"record\":\"log\",\"step\":2,\"loss\":0.5}\n");
}

TEST_F(TrackersTest, AFinishedRunMakesRoomForAnother) {
  auto trackers = make({"jsonl", "tensorboard"});
  trackers.start("one");
  EXPECT_ERROR(trackers.start("two"), UsageError, "start: a run has started; hint: call finish()");
  trackers.finish();
  trackers.finish();
  EXPECT_ERROR(trackers.log({{"loss", 1.0}}, 1), UsageError, "log: no run was started");
  trackers.start("two");
  trackers.log({{"loss", 1.0}}, 1);
  EXPECT_NE(read("two/metrics.jsonl").find("\"loss\":1.0"), std::string::npos);
}

TEST_F(TrackersTest, AFullDiskAndAFolderThatCannotBeMadeAreSystemErrors) {
  std::filesystem::create_directories(runs() + "/basic");
  std::filesystem::create_symlink("/dev/full", runs() + "/basic/metrics.csv");
  EXPECT_ERROR(log({"csv"}, {{"loss", 1.0}}), SystemError,
               "metrics.csv: write: No space left on device");
  folder_.write("runs/file", "");
  auto trackers = make({"csv"});
  EXPECT_ERROR(trackers.start("file"), SystemError, "runs/file: create the folder: Not a dir");
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

// --- the files of TensorBoard ---

std::uint64_t number(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = value << 8U | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

std::uint64_t masked(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return static_cast<std::uint32_t>(((crc >> 15U) | (crc << 17U)) + 0xA282EAD8U);
}

// The events of a file without their wall times (the key 0x09, and 8 bytes). Checks the frames.
std::vector<std::string> events(const TemporaryFolder& folder) {
  std::vector<std::string> events;
  const std::string bytes = folder.read(folder.names().at(0));
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const auto length = static_cast<std::size_t>(number(rest.substr(0, 8)));
    const auto event = rest.substr(12, length);
    EXPECT_EQ(number(rest.substr(8, 4)), masked(rest.substr(0, 8)));
    EXPECT_EQ(number(rest.substr(12 + length, 4)), masked(event));
    EXPECT_EQ(event[0], '\x09');
    events.emplace_back(event.substr(9));
    rest.remove_prefix(16 + length);
  }
  return events;
}

TEST(Crc32c, IsThatOfRfc3720) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
}

TEST(EventFile, HasItsVersionThenEventsWithAStepAndAValuePerTag) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  EXPECT_EQ(events(folder).at(0), "\x1a\x0d"s + "brain.Event:2");
  file.scalars({{"loss", 0.5}, {"acc", 98.0}}, 300);
  EXPECT_EQ(events(folder).at(1), "\x10\xac\x02"s +  // step
                                      "\x2a\x19" +   // 25 bytes
                                      "\x0a\x0a\x0a\x03" + "acc" + "\x15\0\0\xc4\x42"s +  // 98
                                      "\x0a\x0b\x0a\x04" + "loss" + "\x15\0\0\0\x3f"s);   // 0.5
}

// All is in the file when a call returns. A step takes 1 to 10 bytes.
TEST(EventFile, HasEachStepInAsManyBytesAsItTakes) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  std::size_t calls = 0;
  for (const auto& [step, bytes] : {std::pair(127, "\x10\x7f\x2a"s),
                                    {128, "\x10\x80\x01\x2a"s},
                                    {-1, "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x2a"s}}) {
    file.scalars({{"a", 0.0}}, step);
    ASSERT_EQ(events(folder).size(), ++calls + 1);
    EXPECT_TRUE(events(folder).back().starts_with(bytes)) << step;
  }
}

TEST(EventFile, TwoInOneSecondAreTwoFiles) {
  const TemporaryFolder folder;
  const EventFile first(folder.path());
  const EventFile second(folder.path());
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(folder.names().size(), 2U);
  EXPECT_NE(first.path().find("/events.out.tfevents.1"), std::string::npos);
}

TEST(EventFile, AMissingFolderIsASystemError) {
  EXPECT_ERROR(EventFile("/nowhere"), SystemError, "open: No such file or directory");
}

}  // namespace
}  // namespace ladder
