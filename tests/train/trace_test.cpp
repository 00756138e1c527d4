// SPDX-License-Identifier: Apache-2.0
#include "ladder/train/trace.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

// How often an operation is in a trace.
int count(const std::string& text, const std::string& name) {
  int found = 0;
  const auto trace = nlohmann::json::parse(text);
  for (const auto& event : trace.at("traceEvents")) {
    found += event.value("name", "") == name ? 1 : 0;
  }
  return found;
}

void do_steps(Trace& trace, std::int64_t from, std::int64_t to) {
  for (std::int64_t step = from; step <= to; ++step) {
    torch::relu(torch::ones({2}));
    trace.step_done(step);
  }
}

TEST(Trace, HoldsTheStepsItPromises) {
  const TemporaryFolder folder;
  Trace trace(folder.file("a.json"));
  do_steps(trace, 1, Trace::kLastStep);
  EXPECT_EQ(count(folder.read("a.json"), "aten::relu"), 5);
  do_steps(trace, Trace::kLastStep + 1, 20);
  trace.finish();
  EXPECT_EQ(count(folder.read("a.json"), "aten::relu"), 5);
}

TEST(Trace, OfAShortRunIsWrittenAtItsEnd) {
  const TemporaryFolder folder;
  Trace trace(folder.file("a.json"));
  do_steps(trace, 1, 5);
  trace.finish();
  EXPECT_EQ(count(folder.read("a.json"), "aten::relu"), 2);
}

TEST(Trace, WithoutAPathRecordsNothing) {
  Trace trace;
  do_steps(trace, 1, 10);
  trace.finish();
}

TEST(Trace, ThatIsLeftInTheMiddleLetsTheNextOneRun) {
  const TemporaryFolder folder;
  {
    Trace trace(folder.file("a.json"));
    do_steps(trace, 1, 5);
  }
  EXPECT_FALSE(std::filesystem::exists(folder.file("a.json")));
  Trace trace(folder.file("b.json"));
  do_steps(trace, 1, Trace::kLastStep);
  EXPECT_EQ(count(folder.read("b.json"), "aten::relu"), 5);
}

TEST(Trace, EachRankHasAFileOfItsOwn) {
  EXPECT_EQ(Trace::path_of_rank("runs/a.json", 0), "runs/a.json");
  EXPECT_EQ(Trace::path_of_rank("runs/a.json", 1), "runs/a.rank1.json");
  EXPECT_EQ(Trace::path_of_rank("a", 2), "a.rank2");
  EXPECT_EQ(Trace::path_of_rank("", 1), "");
}

}  // namespace
}  // namespace ladder
