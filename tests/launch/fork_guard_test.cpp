// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/fork_guard.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

// A folder like /proc/self: a process with these threads and open files.
class RequireForkable : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* folder : {"task/100", "fd"}) {
      std::filesystem::create_directories(process_.file(folder));
    }
    open("0", "/dev/null");
  }
  void open(const std::string& fd, const std::string& target) {
    std::filesystem::create_symlink(target, process_.file("fd/" + fd));
  }

  TemporaryFolder process_;
};

TEST_F(RequireForkable, AllowsOneThreadWithoutAGpu) {
  EXPECT_NO_THROW(require_forkable(process_.path()));
}

TEST_F(RequireForkable, AllowsThisProcess) { EXPECT_NO_THROW(require_forkable()); }

TEST_F(RequireForkable, AllowsAProcessWhoseThreadHasJustBeenJoined) {
  for (int i = 0; i < 200; ++i) {
    std::thread([] {}).join();
    EXPECT_NO_THROW(require_forkable());
  }
}

TEST_F(RequireForkable, RefusesASecondThread) {
  std::filesystem::create_directory(process_.file("task/101"));
  EXPECT_ERROR(require_forkable(process_.path()), UsageError,
               "spawn: this process has 2 threads, of which a rank would have one; hint: call "
               "spawn first thing in main: before any tensor operation");
}

TEST_F(RequireForkable, RefusesAnOpenGpu) {
  open("5", "/dev/nvidia-uvm");
  EXPECT_ERROR(require_forkable(process_.path()), UsageError,
               "spawn: this process has already opened /dev/nvidia-uvm; hint: ");
}

TEST_F(RequireForkable, AllowsAFileThatIsOnlyNamedLikeAGpu) {
  open("5", "/home/me/dev/nvidia0");
  EXPECT_NO_THROW(require_forkable(process_.path()));
}

class RequireNoLauncher : public testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  void TearDown() override { unsetenv(GetParam().first); }
};

TEST_P(RequireNoLauncher, NamesTheVariableAndTheLauncher) {
  const auto& [name, launcher] = GetParam();
  EXPECT_NO_THROW(require_not_launched());
  setenv(name, "3", 1);
  EXPECT_ERROR(require_not_launched(), UsageError,
               std::string("spawn: ") + name +
                   " is 3: a launcher has already started the ranks; hint: start this program "
                   "without " +
                   launcher + ", or: unset " + name);
}

INSTANTIATE_TEST_SUITE_P(Launchers, RequireNoLauncher,
                         testing::Values(std::pair{"RANK", "torchrun"},
                                         std::pair{"WORLD_SIZE", "torchrun"},
                                         std::pair{"OMPI_COMM_WORLD_RANK", "mpirun"},
                                         std::pair{"PMI_RANK", "mpirun"}));

}  // namespace
}  // namespace ladder
