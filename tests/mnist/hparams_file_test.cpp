// SPDX-License-Identifier: Apache-2.0
#include "mnist/hparams_file.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace mnist {
namespace {

using ladder::TemporaryFolder;
using ladder::UsageError;

class Hparams : public testing::Test {
 protected:
  std::vector<std::pair<std::string, std::string>> read(const std::string& text) const {
    return read_hparams(folder_.write("h.yaml", text));
  }
  std::string at(int line) const { return folder_.file("h.yaml:") + std::to_string(line); }

  TemporaryFolder folder_;
};

TEST_F(Hparams, ArePairsInTheOrderOfTheFile) {
  const std::vector<std::pair<std::string, std::string>> expected = {{"lr", "1e-3"},
                                                                     {"batch-size", "64"},
                                                                     {"epochs", "3"},
                                                                     {"recipe", "convnet"},
                                                                     {"sync-bn", "true"}};
  EXPECT_EQ(read("# hyper-parameters\nlr: 1e-3\nbatch_size: 64\nepochs: '3'\n"
                 "recipe: \"convnet\"  # the second\nsync-bn: true\n"),
            expected);
}

TEST_F(Hparams, ValuesAreTextsAsTheyWereWritten) {
  const auto pairs = read("seed: 007\ngpu: 0,1\nname: no\nsave: \"a: b.safetensors\"\n");
  EXPECT_EQ(pairs[0].second, "007");
  EXPECT_EQ(pairs[1].second, "0,1");
  EXPECT_EQ(pairs[2].second, "no");
  EXPECT_EQ(pairs[3].second, "a: b.safetensors");
}

TEST_F(Hparams, WhatIsNotFlatIsRefused) {
  EXPECT_ERROR(read("lr: 1\nmodel:\n  width: 3\n"), UsageError,
               at(2) + ": model: expected one value, got 'a map'; hint: write each flag on a line");
  EXPECT_ERROR(read("gpus: [0, 1]\n"), UsageError, at(1) + ": gpus: expected one value, got 'a li");
  EXPECT_ERROR(read("- lr\n"), UsageError, at(1) + ": not a map of names to values");
}

TEST_F(Hparams, ANameHasNoDashes) {
  EXPECT_ERROR(read("--lr: 1\n"), UsageError,
               at(1) + ": --lr: expected the name of a flag without its dashes");
}

TEST_F(Hparams, AValueOfSeveralLinesIsRefused) {
  EXPECT_ERROR(read("lr: |\n  1\n  2\n"), UsageError, at(1) + ": lr: expected a value on one line");
}

TEST_F(Hparams, AMissingValueIsRefused) {
  for (const char* text : {"lr:\n", "lr: ''\n"}) {
    EXPECT_ERROR(read(text), UsageError,
                 at(1) + ": lr: expected a value, not set; hint: remove the line");
  }
}

TEST_F(Hparams, AFlagThatIsSetTwiceIsRefused) {
  EXPECT_ERROR(read("lr: 1\nlr: 2\n"), UsageError, at(2) + ": 'lr' is set again, after line 1");
  EXPECT_ERROR(read("batch_size: 1\nbatch-size: 2\n"), UsageError,
               at(2) + ": batch-size: set twice, once with - and once with _");
}

}  // namespace
}  // namespace mnist
