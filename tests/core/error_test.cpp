// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/expect_error.h"

namespace ladder {
namespace {

const std::vector<std::string> kRecipes = {"basicnet", "convnet"};

int code_of(const Error& error) { return static_cast<int>(error.exit_code()); }

TEST(Error, HasTheExitCodeOfItsClass) {
  EXPECT_EQ(code_of(SystemError::failed("write", "a", EIO)), 1);
  EXPECT_EQ(code_of(UsageError::conflict("a", "b", "c")), 2);
  EXPECT_EQ(code_of(DataError::missing_file("a", "b")), 3);
  EXPECT_EQ(code_of(DistributedError::of("a", "b", "c", "d")), 4);
  EXPECT_EQ(code_of(NumericError::of("a", "b", "c", "d")), 5);
  EXPECT_EQ(code_of(ChildError::of(3, "rank 1", "exit code 0", "3", "look")), 3);
}

TEST(Error, ShowsWhereExpectedGotAndHintWithoutPartsThatAreEmpty) {
  const std::string text = "step 5: expected a finite loss, got inf; hint: stop";
  const std::pair<Error, std::string> cases[] = {
      {UsageError::out_of_range("epochs", 0, "1 or more", "try 1"),
       "epochs: expected 1 or more, got 0; hint: try 1"},
      {UsageError::out_of_range("lr", -0.5, "0 or more", ""), "lr: expected 0 or more, got -0.5"},
      {UsageError::missing("MASTER_ADDR", "a host", "start by torchrun"),
       "MASTER_ADDR: expected a host, not set; hint: start by torchrun"},
      {UsageError::malformed("RANK", "a number", "two", "such as 0"),
       "RANK: expected a number, got 'two'; hint: such as 0"},
      {UsageError::conflict("gpu", "excludes device cpu", "drop one"),
       "gpu: excludes device cpu; hint: drop one"},
      {UsageError::unknown_name("recipe", "covnet", kRecipes),
       "recipe: expected one of basicnet, convnet, got 'covnet'; hint: did you mean convnet?"},
      {UsageError::unknown_name("recipe", "transformer", kRecipes),
       "recipe: expected one of basicnet, convnet, got 'transformer'"},
      {DataError::missing_file("data/x.gz", "pass --data-root"),
       "data/x.gz: expected a readable file, got none; hint: pass --data-root"},
      {DataError::mismatch("data/x", "8 bytes", "7", "fetch it again"),
       "data/x: expected 8 bytes, got 7; hint: fetch it again"},
      {DistributedError::of("barrier", "", "timed out", ""), "barrier: timed out"},
      {DistributedError::of("step 5", "a finite loss", "inf", "stop"), text},
      {NumericError::of("step 5", "a finite loss", "inf", "stop"), text},
      {ChildError::of(3, "rank 1", "exit code 0", "3", "look"),
       "rank 1: expected exit code 0, got 3; hint: look"},
      {SystemError::failed("rename", "out/m.bin", EACCES),
       "out/m.bin: rename: Permission denied; hint: check the permissions: namei -l out/m.bin"},
      {SystemError::failed("write", "out/m.bin", ENOSPC),
       "out/m.bin: write: No space left on device; hint: its disk has no space left, or no "
       "inodes: df -h, df -i"},
      {SystemError::failed("write", "out/m.bin", EIO),
       "out/m.bin: write: Input/output error; hint: see the messages of the kernel about its "
       "disk: dmesg"},
      {SystemError::failed("open", "m.bin", ENOENT),
       "m.bin: open: No such file or directory; hint: check the path: ls ."},
      {SystemError::failed("open", "m.bin", EEXIST),
       "m.bin: open: File exists; hint: something else is there: ls -ld m.bin"}};
  for (const auto& [error, message] : cases) EXPECT_EQ(error.what(), message);
}

TEST(Error, ANumberOutsideItsRangeIsRefused) {
  EXPECT_NO_THROW(require_between("rank", 0, 0, 3, "ranks count from 0"));
  EXPECT_NO_THROW(require_between("rank", 3, 0, 3, "ranks count from 0"));
  EXPECT_ERROR(require_between("rank", -1, 0, 3, "ranks count from 0"), UsageError,
               "rank: expected 0 to 3, got -1; hint: ranks count from 0");
  EXPECT_ERROR(require_between("rank", 4, 0, 3, "ranks count from 0"), UsageError, "got 4");
  EXPECT_NO_THROW(require_at_least("cooldown", 0, 0, "such as 1"));
  EXPECT_ERROR(require_at_least("cooldown", -1, 0, "such as 1"), UsageError,
               "cooldown: expected a number >= 0, got -1; hint: such as 1");
}

TEST(NearestName, CountsInsertionsSwapsAndTreatsUnderscoresAsDashes) {
  const std::vector<std::string> flags = {"--epochs", "--batch-size", "--eval-batch-size",
                                          "--lr",     "--localrank",  "--local-rank"};
  EXPECT_EQ(nearest_name("--epoch", flags), "--epochs");
  EXPECT_EQ(nearest_name("--batchsize", flags), "--batch-size");
  EXPECT_EQ(nearest_name("--eval", flags), "--eval-batch-size");  // the beginning of a name
  EXPECT_EQ(nearest_name("--bat", flags), "--batch-size");
  EXPECT_EQ(nearest_name("lr", std::vector<std::string>{"lr_scheduler_type"}), "");
  EXPECT_EQ(nearest_name("--local_rank", flags), "--local-rank");
  EXPECT_EQ(nearest_name("--peohcs", flags), "--epochs");  // two swaps, not four mistakes
  EXPECT_EQ(nearest_name("--momentum", flags), "");
  EXPECT_EQ(nearest_name("--epochs", {}), "");
  for (const auto& [theirs, ours] : {std::pair{"--nproc_per_node", "--nprocs"},
                                     {"--world-size", "--nprocs"},
                                     {"--learning-rate", "--lr"},
                                     {"--num_train_epochs", "--epochs"},
                                     {"--no-cuda", "--device"}}) {
    const std::vector<std::string> own = {"--device", "--epochs", "--lr", "--nprocs", "--save"};
    EXPECT_EQ(nearest_name(theirs, own), ours);
  }
  EXPECT_EQ(nearest_name("--nprocs", std::vector<std::string>{"--rank", "--world-size"}), "");
  EXPECT_EQ(nearest_name("lr", std::vector<std::string>{"learning_rate"}), "learning_rate");
}

}  // namespace
}  // namespace ladder
