// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/immutable.h"
#include "tests/support/odd_paths.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

constexpr uid_t kNobody = 65534;

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string temporary_name(std::string_view name) {
  return std::string(name) + ".tmp." + std::to_string(getpid());
}

void replace(const std::string& path) {
  AtomicFile file(path);
  file.write(bytes("new"));
  file.commit();
}

TEST(AtomicFile, AppearsWholeWhenCommittedAndReplacesTheOldContentOnlyThen) {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder.file("m.bin"));
    file.write(bytes("one "));
    file.write(bytes(""));
    file.write(bytes("two"));
    EXPECT_EQ(folder.names(), Names{temporary_name("m.bin")});
    file.commit();
    EXPECT_EQ(folder.read("m.bin"), "one two");
    EXPECT_EQ(folder.names(), Names{"m.bin"});
    folder.write(temporary_name("m.bin"), "of the next object, or of a killed process");
  }
  EXPECT_TRUE(fs::exists(folder.file(temporary_name("m.bin")))) << "after commit it is left alone";
  AtomicFile(folder.file("m.bin")).write(bytes("new"));  // without commit
  EXPECT_EQ(folder.read("m.bin"), "one two");
  EXPECT_EQ(folder.names(), Names{"m.bin"});
  folder.write(temporary_name("m.bin"), "longer than the new content");
  replace(folder.file("m.bin"));
  EXPECT_EQ(folder.read("m.bin"), "new");
  EXPECT_EQ(folder.names(), Names{"m.bin"});
}

TEST(AtomicFile, WritesToTheCurrentFolder) {
  const TemporaryFolder folder;
  const auto before = fs::current_path();
  fs::current_path(folder.path());
  replace("m.bin");
  fs::current_path(before);
  EXPECT_EQ(folder.read("m.bin"), "new");
}

TEST(AtomicFile, ReplacesTheFileBehindALinkAndWritesThroughNoLinkInItsWay) {
  const TemporaryFolder folder;
  folder.write("victim", "precious");
  folder.write("real.bin", "old");
  fs::create_symlink("real.bin", folder.file("link.bin"));
  fs::create_symlink(folder.file("victim"), folder.file(temporary_name("real.bin")));
  replace(folder.file("link.bin"));
  EXPECT_EQ(folder.read("victim"), "precious");
  EXPECT_EQ(folder.read("real.bin"), "new");
  EXPECT_TRUE(fs::is_symlink(folder.file("link.bin")));
}

TEST(AtomicFile, NamesTheOperationThatFailedAndLeavesNoTemporaryFile) {
  const TemporaryFolder folder;
  EXPECT_ERROR(
      AtomicFile{folder.file("nowhere/m.bin")}, SystemError,
      temporary_name(folder.file("nowhere/m.bin")) + ": create: No such file or directory");
  {
    AtomicFile file(folder.file("m.bin"));
    file.write(bytes("new"));
    fs::create_directory(folder.file("m.bin"));  // somebody else was faster
    EXPECT_ERROR(file.commit(), SystemError, folder.file("m.bin") + ": rename: Is a directory");
  }
  EXPECT_EQ(folder.names(), Names{"m.bin"});
  fs::create_directory(folder.file(temporary_name("n.bin")));
  EXPECT_ERROR(AtomicFile{folder.file("n.bin")}, SystemError, ": create: ");
  EXPECT_EQ(folder.names(), (Names{"m.bin", temporary_name("n.bin")}));
}

TEST(AtomicFile, NeverReplacesAPipeOrADevice) {
  const TemporaryFolder folder;
  const std::string path = make_pipe(folder.file("pipe"));
  EXPECT_ERROR(AtomicFile{path}, SystemError, path + ": replace: Invalid argument");
  EXPECT_ERROR(require_writable_folder("save", path), UsageError,
               "hint: name a file, not a folder or a device");
  EXPECT_TRUE(fs::is_fifo(path));
}

// Files of this process may not grow beyond a limit while an object lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  sighandler_t handler_;
};

TEST(AtomicFile, AFailedWriteKeepsTheOldContentAndLeavesNoTemporaryFile) {
  const TemporaryFolder folder;
  folder.write("m.bin", "old");
  {
    const FileSizeLimit limit(1000);
    AtomicFile file(folder.file("m.bin"));
    file.write(bytes(std::string(900, 'x')));
    EXPECT_ERROR(file.write(bytes(std::string(200, 'x'))), SystemError,
                 folder.file(temporary_name("m.bin")) + ": write: File too large");
  }
  EXPECT_EQ(folder.read("m.bin"), "old");
  EXPECT_EQ(folder.names(), Names{"m.bin"});
}

TEST(RequireWritableFolder, AcceptsANewFileAndAnOldOneAndCreatesNothing) {
  const TemporaryFolder folder;
  folder.write("old", "x");
  const auto new_file = folder.file("new");
  EXPECT_NO_THROW(require_writable_folder("save", new_file));
  EXPECT_NO_THROW(require_writable_folder("save", new_file, 1000));
  EXPECT_NO_THROW(require_writable_folder("save", folder.file("old")));
  EXPECT_NO_THROW(require_writable_folder("save", "name-in-this-folder"));
  EXPECT_NO_THROW(require_writable_folder("save", folder.file(std::string(240, 'a'))));
  EXPECT_EQ(folder.names(), Names{"old"});
}

TEST(RequireWritableFolder, RefusesEveryOtherPathWithAHint) {
  const TemporaryFolder folder;
  const auto expect_hint = [](const std::string& path, const std::string& hint,
                              std::int64_t bytes = 1) {
    EXPECT_ERROR(require_writable_folder("save", path, bytes), UsageError,
                 "save: expected a file in a folder that can be written, got '" + path + "'", hint);
  };
  const std::string name_a_file = "; hint: name a file, not a folder or a device";
  expect_hint(folder.file("nowhere/m"), "create the folder first: mkdir -p " + folder.file("no"));
  expect_hint(folder.write("file", "x") + "/m.bin",
              "Not a directory: a part of the path is a file");
  expect_hint(folder.path(), name_a_file);
  expect_hint("", name_a_file);
  expect_hint("/proc", name_a_file);
  EXPECT_EQ(error_of_replacing("/proc"), EBUSY);  // a mount point
  expect_hint("/proc/new", "it has 0 bytes free, and the file needs 1: df -h /proc");
  expect_hint(folder.file("new"), "bytes free, and the file needs 4611686018427387904: df -h ",
              std::int64_t{1} << 62);
  // A file is written under a longer name first.
  expect_hint(folder.file(std::string(241, 'a')), "a name has at most 240 bytes");
}

// A rename would fail after the training.
TEST(RequireWritableFolder, RefusesAFileThatCannotBeReplaced) {
  const TemporaryFolder folder;
  const std::string path = folder.write("m.bin", "x");
  if (const Immutable immutable(path); immutable) {
    EXPECT_ERROR(require_writable_folder("save", path), UsageError,
                 "hint: Operation not permitted: check owners and attributes: namei -l " + path);
  }
  if (geteuid() != 0) GTEST_SKIP() << "the file of another user takes root";
  constexpr uid_t kOwner = 1234;
  fs::permissions(folder.path(), fs::perms::all | fs::perms::sticky_bit);
  ASSERT_EQ(chown(folder.path().c_str(), kOwner, kOwner) + chown(path.c_str(), kOwner, kOwner), 0);
  ASSERT_EQ(seteuid(kNobody), 0);
  EXPECT_EQ(error_of_replacing(path), EPERM);
  EXPECT_EQ(error_of_replacing(folder.file("new")), 0);
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_EQ(error_of_replacing(path), 0);
  EXPECT_EQ(folder.read("m.bin"), "x");
}

TEST(ErrorOfReplacing, LeavesAFolderInPlace) {
  const TemporaryFolder folder;
  fs::create_directory(folder.file("empty"));
  EXPECT_EQ(error_of_replacing(folder.file("empty")), 0);
  EXPECT_EQ(error_of_replacing(folder.file("empty/none")), 0);
  EXPECT_EQ(error_of_replacing(folder.file("none/none")), ENOENT);
  if (const Immutable immutable(folder.file("empty")); immutable) {
    EXPECT_EQ(error_of_replacing(folder.file("empty")), EPERM);
    EXPECT_EQ(error_of_replacing(folder.file("empty/none")), EPERM);
  }
  EXPECT_EQ(folder.names(), Names{"empty"});
}

TEST(RequireWritableFolder, RefusesAFolderWithoutPermission) {
  const TemporaryFolder folder;
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec |
                                     fs::perms::others_read | fs::perms::others_exec);
  const uid_t user = geteuid();
  if (user == 0) {  // who may write anywhere
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  EXPECT_ERROR(require_writable_folder("save", folder.file("m.bin")), UsageError,
               "hint: Permission denied: check the permissions: namei -l " + folder.file("m.bin"));
  ASSERT_EQ(seteuid(user), 0);
  fs::permissions(folder.path(), fs::perms::owner_all);
}

}  // namespace
}  // namespace ladder
