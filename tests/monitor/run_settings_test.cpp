// SPDX-License-Identifier: Apache-2.0
#include "ladder/monitor/run_settings.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ladder/core/error.h"
#include "tests/support/captured_stream.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

const RunSettings kSettings = {{"--head", "logits"},
                               {"--batch-size", "64", Effect::kTraining},
                               {"--lr", "0.1", Effect::kOptimizer}};

std::string log_of(const nlohmann::json& saved, const RunSettings& own = kSettings) {
  CapturedStream stream;
  compare_settings(saved, own, "c/custom.json", Log({.stream = stream.get()}));
  return stream.text();
}

TEST(RunSettings, ThatAreEqualAreSilent) { EXPECT_EQ(log_of(settings_to_json(kSettings)), ""); }

TEST(RunSettings, OneThatMustStayIsAnErrorWithBothValues) {
  EXPECT_ERROR(log_of({{"--head", "log-softmax"}}), UsageError,
               "c/custom.json: it was written with --head=log-softmax, and this run has "
               "--head=logits; hint: resume with --head=log-softmax, or begin a new run and load "
               "c/model.safetensors");
}

TEST(RunSettings, OneThatMayChangeIsNamed) {
  EXPECT_EQ(log_of({{"--batch-size", "32"}}),
            "c/custom.json: --batch-size was 32, and is 64 from here on\n");
}

// The state of the optimizer has it: a resume reports it there.
TEST(RunSettings, OneOfTheOptimizerIsSavedAndNotReported) {
  EXPECT_EQ(settings_of_ranks(kSettings).at("--lr"), "0.1");
  EXPECT_EQ(settings_to_json(kSettings).at("--lr"), "0.1");
  EXPECT_EQ(log_of({{"--lr", "0.2"}}), "");
}

TEST(RunSettings, OneThatOnlyOneSideHasIsNotCompared) {
  EXPECT_EQ(log_of({{"--new", "1"}}), "");
  EXPECT_EQ(log_of({{"--head", "other"}}, {}), "");
}

TEST(RunSettings, OfAnOlderVersionAreReportedAsMissing) {
  EXPECT_EQ(log_of(nullptr), "c/custom.json: written without settings, so none were compared\n");
}

TEST(RunSettings, ThatAreDamagedAreRefused) {
  EXPECT_ERROR(log_of(nlohmann::json::array()), DataError,
               "expected an object as settings, got []");
  EXPECT_ERROR(log_of({{"--head", 3}}), DataError,
               "expected a text as \"--head\" as settings, got 3");
}

}  // namespace
}  // namespace ladder
