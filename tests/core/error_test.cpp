// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"

namespace ladder {
namespace {

std::string message_of(const Error& error) { return error.what(); }

TEST(Error, UsageErrorsEndWithTwo) {
  EXPECT_EQ(UsageError::conflict("a", "b", "c").exit_code(), ExitCode::kUsage);
  EXPECT_EQ(static_cast<int>(ExitCode::kUsage), 2);
}

TEST(Error, DataErrorsEndWithThree) {
  EXPECT_EQ(DataError::missing_file("a", "b").exit_code(), ExitCode::kData);
  EXPECT_EQ(static_cast<int>(ExitCode::kData), 3);
}

TEST(Error, NumericErrorsEndWithFive) {
  EXPECT_EQ(NumericError::loss_not_finite(NAN, 1, 1).exit_code(), ExitCode::kNumeric);
  EXPECT_EQ(static_cast<int>(ExitCode::kNumeric), 5);
}

TEST(Error, SystemErrorsEndWithOne) {
  EXPECT_EQ(SystemError::failed("write", "a", EIO).exit_code(), ExitCode::kRuntime);
  EXPECT_EQ(static_cast<int>(ExitCode::kRuntime), 1);
}

TEST(Error, OutOfRangeSaysExpectedAndGot) {
  EXPECT_EQ(message_of(UsageError::out_of_range("--lr", -0.5, "0 or more")),
            "--lr: expected 0 or more, got -0.5");
}

TEST(Error, OutOfRangeEndsWithTheHintIfThereIsOne) {
  EXPECT_EQ(message_of(UsageError::out_of_range("--epochs", 0, "1 or more", "try 1")),
            "--epochs: expected 1 or more, got 0; hint: try 1");
}

TEST(Error, UnknownNameProposesTheNearestChoice) {
  const std::vector<std::string> choices = {"basicnet", "convnet"};
  EXPECT_EQ(
      message_of(UsageError::unknown_name("--recipe", "covnet", choices)),
      "--recipe: expected one of basicnet, convnet, got 'covnet'; hint: did you mean convnet?");
}

TEST(Error, UnknownNameProposesNothingFarAway) {
  const std::vector<std::string> choices = {"basicnet", "convnet"};
  EXPECT_EQ(message_of(UsageError::unknown_name("--recipe", "transformer", choices)),
            "--recipe: expected one of basicnet, convnet, got 'transformer'");
}

TEST(Error, ConflictHasNoExpectedPart) {
  EXPECT_EQ(message_of(UsageError::conflict("--gpu", "excludes --device cpu", "drop one")),
            "--gpu: excludes --device cpu; hint: drop one");
}

TEST(Error, MissingGotNothing) {
  EXPECT_EQ(message_of(UsageError::missing("MASTER_ADDR", "a host", "start by torchrun")),
            "MASTER_ADDR: expected a host, got nothing; hint: start by torchrun");
}

TEST(Error, MalformedQuotesTheText) {
  EXPECT_EQ(message_of(UsageError::malformed("RANK", "a number", "two")),
            "RANK: expected a number, got 'two'");
}

TEST(Error, MissingFileBeginsWithThePath) {
  EXPECT_EQ(message_of(DataError::missing_file("data/x.gz", "pass --data-root")),
            "data/x.gz: expected a readable file, got none; hint: pass --data-root");
}

TEST(Error, MismatchBeginsWithThePath) {
  EXPECT_EQ(message_of(DataError::mismatch("data/x", "8 bytes", "7", "fetch it again")),
            "data/x: expected 8 bytes, got 7; hint: fetch it again");
}

TEST(Error, LossNotFiniteNamesEpochAndStep) {
  EXPECT_EQ(message_of(NumericError::loss_not_finite(INFINITY, 2, 57)),
            "epoch 2, step 57: expected a finite loss, got inf; hint: lower --lr, or look for the "
            "first odd step with --fingerprint 1");
}

TEST(Error, ChildErrorsEndWithTheCodeOfTheRank) {
  const auto error = ChildError::exited("rank 1", 3, "no file", "look");
  EXPECT_EQ(error.exit_code(), ExitCode::kData);
  EXPECT_EQ(message_of(error),
            "rank 1: expected exit code 0, got 3; its last line: \"no file\"; hint: look");
}

TEST(Error, ChildErrorsDoWithoutALastLine) {
  EXPECT_EQ(message_of(ChildError::exited("rank 0", 143, "")),
            "rank 0: expected exit code 0, got 143");
}

TEST(Error, RankKilledCutsALongLastLine) {
  const std::string message =
      DistributedError::rank_killed("rank 2", 9, std::string(500, 'x')).what();
  EXPECT_NE(message.find("signal 9 (Killed); its last line: \"" + std::string(300, 'x') + "...\""),
            std::string::npos)
      << message;
}

TEST(Error, FailedNamesPathOperationAndReason) {
  EXPECT_EQ(message_of(SystemError::failed("rename", "out/m.bin", EACCES)),
            "out/m.bin: rename: Permission denied");
}

TEST(Error, AFullDiskHintsToFreeSpace) {
  EXPECT_EQ(message_of(SystemError::write_failed("out/m.bin", ENOSPC)),
            "out/m.bin: write: No space left on device; hint: free some space on its disk: df -h");
}

TEST(Error, AnotherFailedWriteHasNoHint) {
  EXPECT_EQ(message_of(SystemError::write_failed("out/m.bin", EIO)),
            "out/m.bin: write: Input/output error");
}

std::string nearest(const std::string& name) {
  const std::vector<std::string> flags = {"--epochs",    "--batch-size", "--eval-batch-size",
                                          "--data-root", "--lr",         "--seed"};
  return nearest_name(name, flags);
}

TEST(NearestName, FindsAMissingLetter) { EXPECT_EQ(nearest("--epoch"), "--epochs"); }

TEST(NearestName, FindsAMissingDash) { EXPECT_EQ(nearest("--batchsize"), "--batch-size"); }

TEST(NearestName, TakesUnderscoresForDashes) {
  const std::vector<std::string> choices = {"--localrank", "--local-rank"};
  EXPECT_EQ(nearest_name("--local_rank", choices), "--local-rank");
}

TEST(NearestName, CountsASwapOfNeighboursAsOneMistake) {
  EXPECT_EQ(nearest("--peohcs"), "--epochs");  // two swaps; four mistakes would be too many
}

TEST(NearestName, FindsAnotherNumberAndUnderscoresAtOnce) {
  const std::vector<std::string> choices = {"nnodes", "nproc-per-node", "node-rank"};
  EXPECT_EQ(nearest_name("nproc_per_nodes", choices), "nproc-per-node");
}

TEST(NearestName, IsEmptyIfNothingIsClose) { EXPECT_EQ(nearest("--momentum"), ""); }

TEST(NearestName, IsEmptyWithoutChoices) { EXPECT_EQ(nearest_name("--epochs", {}), ""); }

}  // namespace
}  // namespace ladder
