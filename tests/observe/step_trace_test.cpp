// SPDX-License-Identifier: Apache-2.0
#include "ladder/observe/step_trace.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
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

void do_steps(StepTrace& trace, std::int64_t from, std::int64_t to) {
  for (std::int64_t step = from; step <= to; ++step) {
    torch::relu(torch::ones({2}));
    trace.step_done(step);
  }
}

TEST(StepTrace, HoldsTheStepsItPromisesAndOfAShortRunThoseThereAre) {
  const TemporaryFolder folder;
  StepTrace whole(folder.file("a.json"));
  do_steps(whole, 1, StepTrace::kLastStep);
  EXPECT_EQ(count(folder.read("a.json"), "aten::relu"), 5);
  do_steps(whole, StepTrace::kLastStep + 1, 20);
  whole.finish();
  EXPECT_EQ(count(folder.read("a.json"), "aten::relu"), 5);
  StepTrace without_path;
  StepTrace brief(folder.file("b.json"));
  for (StepTrace* trace : {&without_path, &brief}) {
    do_steps(*trace, 1, 5);
    trace->finish();
  }
  EXPECT_EQ(count(folder.read("b.json"), "aten::relu"), 2);
}

// Kineto writes PATH.tmp first, whatever is there.
TEST(StepTrace, RefusesNamesThatKinetoWouldChangeOrWriteOver) {
  const TemporaryFolder folder;
  EXPECT_ERROR(StepTrace(folder.file("a\n.json")), UsageError, "without control characters");
  folder.write("a.json.tmp", "mine");
  EXPECT_ERROR(StepTrace(folder.file("a.json")), UsageError, "Kineto would write over it");
}

TEST(StepTrace, ThatIsLeftInTheMiddleLetsTheNextOneRun) {
  const TemporaryFolder folder;
  {
    StepTrace trace(folder.file("a.json"));
    do_steps(trace, 1, 5);
  }
  EXPECT_FALSE(std::filesystem::exists(folder.file("a.json")));
  StepTrace trace(folder.file("b.json"));
  do_steps(trace, 1, StepTrace::kLastStep);
  EXPECT_EQ(count(folder.read("b.json"), "aten::relu"), 5);
}

TEST(StepTrace, EachRankHasAFileOfItsOwn) {
  EXPECT_EQ(StepTrace::path_of_rank("runs/a.json", 0), "runs/a.json");
  EXPECT_EQ(StepTrace::path_of_rank("runs/a.json", 1), "runs/a.rank1.json");
  EXPECT_EQ(StepTrace::path_of_rank("a", 2), "a.rank2");
  EXPECT_EQ(StepTrace::path_of_rank("", 1), "");
}

}  // namespace
}  // namespace ladder
