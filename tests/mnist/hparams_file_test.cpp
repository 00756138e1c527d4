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

  TemporaryFolder folder_;
};

TEST_F(Hparams, ArePairsInTheOrderOfTheFileWithValuesAsTheyWereWritten) {
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"lr", "1e-3"},        {"batch-size", "64"}, {"epochs", "3"},
      {"recipe", "convnet"}, {"sync-bn", "true"},  {"seed", "007"},
      {"gpu", "0,1"},        {"name", "no"},       {"save", "a: b.safetensors"}};
  EXPECT_EQ(read("# hyper-parameters\nlr: 1e-3\nbatch_size: 64\nepochs: '3'\n"
                 "recipe: \"convnet\"  # the second\nsync-bn: true\n"
                 "seed: 007\ngpu: 0,1\nname: no\nsave: \"a: b.safetensors\"\n"),
            expected);
}

TEST_F(Hparams, WhatIsNoFlatMapOfFlagsIsRefusedWithItsLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"lr: 1\nmodel:\n  width: 3\n", ":2: model: expected one value, got 'a map'; hint: write"},
      {"gpus: [0, 1]\n", ":1: gpus: expected one value, got 'a li"},
      {"- lr\n", ":1: not a map of names to values"},
      {"--lr: 1\n", ":1: --lr: expected the name of a flag without its dashes"},
      {"lr: |\n  1\n  2\n", ":1: lr: expected a value on one line"},
      {"lr:\n", ":1: lr: expected a value, not set; hint: remove the line"},
      {"lr: ''\n", ":1: lr: expected a value, not set; hint: remove the line"},
      {"lr: 1\nlr: 2\n", ":2: 'lr' is set again, after line 1"},
      {"batch_size: 1\nbatch-size: 2\n", ":2: batch-size: set twice, once with - and once with _"}};
  for (const auto& [text, message] : cases) {
    EXPECT_ERROR(read(text), UsageError, folder_.file("h.yaml") + message);
  }
}

}  // namespace
}  // namespace mnist
