// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/error.h"

#include <gtest/gtest.h>

#include <cerrno>
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

TEST(Error, DistributedErrorsEndWithFour) {
  EXPECT_EQ(DistributedError::of("a", "b", "c", "d").exit_code(), ExitCode::kDistributed);
  EXPECT_EQ(static_cast<int>(ExitCode::kDistributed), 4);
}

TEST(Error, NumericErrorsEndWithFive) {
  EXPECT_EQ(NumericError::of("a", "b", "c", "d").exit_code(), ExitCode::kNumeric);
  EXPECT_EQ(static_cast<int>(ExitCode::kNumeric), 5);
}

TEST(Error, SystemErrorsEndWithOne) {
  EXPECT_EQ(SystemError::failed("write", "a", EIO).exit_code(), ExitCode::kRuntime);
  EXPECT_EQ(static_cast<int>(ExitCode::kRuntime), 1);
}

TEST(Error, OutOfRangeShowsExpectedAndGot) {
  EXPECT_EQ(message_of(UsageError::out_of_range("lr", -0.5, "0 or more")),
            "lr: expected 0 or more, got -0.5");
}

TEST(Error, OutOfRangeEndsWithTheHintIfThereIsOne) {
  EXPECT_EQ(message_of(UsageError::out_of_range("epochs", 0, "1 or more", "try 1")),
            "epochs: expected 1 or more, got 0; hint: try 1");
}

TEST(Error, UnknownNameProposesTheNearestChoice) {
  const std::vector<std::string> choices = {"basicnet", "convnet"};
  EXPECT_EQ(message_of(UsageError::unknown_name("recipe", "covnet", choices)),
            "recipe: expected one of basicnet, convnet, got 'covnet'; hint: did you mean convnet?");
}

TEST(Error, UnknownNameProposesNothingFarAway) {
  const std::vector<std::string> choices = {"basicnet", "convnet"};
  EXPECT_EQ(message_of(UsageError::unknown_name("recipe", "transformer", choices)),
            "recipe: expected one of basicnet, convnet, got 'transformer'");
}

TEST(Error, ConflictHasNoExpectedPart) {
  EXPECT_EQ(message_of(UsageError::conflict("gpu", "excludes device cpu", "drop one")),
            "gpu: excludes device cpu; hint: drop one");
}

TEST(Error, MissingIsNotSet) {
  EXPECT_EQ(message_of(UsageError::missing("MASTER_ADDR", "a host", "start by torchrun")),
            "MASTER_ADDR: expected a host, not set; hint: start by torchrun");
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

TEST(Error, PartsOfDistributedAndNumericErrors) {
  const std::string text = "step 5: expected a finite loss, got inf; hint: stop";
  EXPECT_EQ(message_of(DistributedError::of("step 5", "a finite loss", "inf", "stop")), text);
  EXPECT_EQ(message_of(NumericError::of("step 5", "a finite loss", "inf", "stop")), text);
}

TEST(Error, AnEmptyExpectedPartIsNotShown) {
  EXPECT_EQ(message_of(DistributedError::of("barrier", "", "timed out", "")), "barrier: timed out");
  EXPECT_EQ(message_of(NumericError::of("loss", "", "nan", "")), "loss: nan");
  EXPECT_EQ(message_of(ChildError::of(3, "rank 0", "", "exit code 3", "look")),
            "rank 0: exit code 3; hint: look");
}

TEST(Error, ChildErrorsEndWithTheCodeOfTheChild) {
  const auto error = ChildError::of(3, "rank 1", "exit code 0", "3", "look");
  EXPECT_EQ(error.exit_code(), ExitCode::kData);
  EXPECT_EQ(message_of(error), "rank 1: expected exit code 0, got 3; hint: look");
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

TEST(NearestName, TreatsUnderscoresAsDashes) {
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
