// SPDX-License-Identifier: Apache-2.0
#include "ladder/armour/folder_lock.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "ladder/core/error.h"
#include "tests/support/checkpoints.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{20'000};

// A process that holds a lock until it is killed.
class Owner {
 public:
  explicit Owner(const std::string& file) {
    std::array<int, 2> ready{};
    if (pipe(ready.data()) != 0) throw std::runtime_error("pipe failed");
    pid_ = fork();
    if (pid_ == 0) {
      alarm(60);
      const FolderLock lock("out", file, kLong);
      [[maybe_unused]] const auto written = write(ready[1], "r", 1);
      while (true) pause();
    }
    char byte = 0;
    if (read(ready[0], &byte, 1) != 1) throw std::runtime_error("it did not get the lock");
    close(ready[0]);
    close(ready[1]);
  }
  ~Owner() { end(); }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  pid_t pid() const { return pid_; }
  void end() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

TEST(FolderLock, RefusesASecondOwnerAndNamesTheFirst) {
  const TemporaryFolder folder;
  const auto lock = [&] { return FolderLock("out", folder.file(".lock"), milliseconds(0)); };
  {
    const Owner owner(folder.file(".lock"));
    EXPECT_ERROR(lock(), UsageError, fmt::format("out: in use by process {} on ", owner.pid()),
                 "; hint: wait for the end of that run, or name another folder");
  }
  const FolderLock own = lock();
  EXPECT_TRUE(own.is_held());
  EXPECT_ERROR(lock(), UsageError, fmt::format("process {} on ", getpid()));
}

TEST(FolderLock, IsNeverStale) {
  const TemporaryFolder folder;
  Owner owner(folder.file(".lock"));
  owner.end();
  EXPECT_TRUE(std::filesystem::exists(folder.file(".lock"))) << "the file alone is no lock";
  {
    const FolderLock lock("out", folder.file(".lock"), milliseconds(0));
    EXPECT_TRUE(folder.read(".lock").starts_with("process " + std::to_string(getpid()) + " on "));
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(FolderLock, OfARemovedFolderLeavesTheFileOfTheNextOwner) {
  const TemporaryFolder folder;
  const auto file = folder.file("out/.lock");
  std::filesystem::create_directory(folder.file("out"));
  std::optional<const FolderLock> lock(std::in_place, "out", file, milliseconds(0));
  EXPECT_TRUE(lock->is_in_place());
  std::filesystem::remove(file);
  const FolderLock next("out", file, milliseconds(0));
  EXPECT_FALSE(lock->is_in_place());
  lock.reset();
  EXPECT_TRUE(next.is_in_place());
}

TEST(FolderLock, WaitsForARunThatEnds) {
  const TemporaryFolder folder;
  Owner owner(folder.file(".lock"));
  const pid_t waiting = child_of([&] {
    const FolderLock lock("out", folder.file(".lock"), kLong);
    if (!lock.is_held()) throw std::runtime_error("not locked");
  });
  owner.end();
  expect_exit_0(status_of(waiting));
}

// The end of one owner removes the file while the next ones open it.
TEST(FolderLock, HasOneOwnerAtATime) {
  const TemporaryFolder folder;
  const auto take_turns = [&] {
    for (int turn = 0; turn < 30; ++turn) {
      const FolderLock lock("out", folder.file(".lock"), kLong);
      const auto mark = folder.file("mark");
      const int file = open(mark.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      if (file < 0) throw std::runtime_error("two owners");
      close(file);
      unlink(mark.c_str());
    }
  };
  std::array<pid_t, 4> processes{};
  for (auto& process : processes) process = child_of(take_turns);
  for (const auto process : processes) expect_exit_0(status_of(process));
  EXPECT_TRUE(folder.names().empty());
}

TEST(FolderLock, FollowsNoLinkAndTrustsNoText) {
  const TemporaryFolder folder;
  folder.write("precious", "text");
  std::filesystem::create_symlink("precious", folder.file("link.lock"));
  EXPECT_ERROR(FolderLock("out", folder.file("link.lock"), milliseconds(0)), SystemError,
               "/link.lock: open: Too many levels of symbolic links");
  EXPECT_EQ(folder.read("precious"), "text");
  EXPECT_ERROR(FolderLock("out", folder.file("none/.lock"), milliseconds(0)), SystemError,
               "/none: open: No such file or directory");
  const Owner owner(folder.file(".lock"));
  folder.write(".lock", "\x1b[2J" + std::string(300, 'x'));
  EXPECT_ERROR(FolderLock("out", folder.file(".lock"), milliseconds(0)), UsageError,
               "in use by \\u001b[2Jxxx");
}

TEST(FolderLock, RemovesItsFileAlsoAfterAChangeOfTheCurrentFolder) {
  const TemporaryFolder folder;
  const TemporaryFolder other;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  other.write(".lock", "of another run");
  {
    const FolderLock lock("out", ".lock", milliseconds(0));
    std::filesystem::current_path(other.path());
  }
  std::filesystem::current_path(before);
  EXPECT_TRUE(folder.names().empty());
  EXPECT_EQ(other.read(".lock"), "of another run");
}

}  // namespace
}  // namespace ladder
