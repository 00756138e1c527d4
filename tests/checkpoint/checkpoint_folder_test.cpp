// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/checkpoint_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <ios>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/io/atomic_file.h"
#include "ladder/io/sha256.h"
#include "tests/support/checkpoints.h"
#include "tests/support/expect_error.h"
#include "tests/support/immutable.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

TEST(NewestFolder, IsThatOfTheLargestNumberWhateverItHolds) {
  const TemporaryFolder folder;
  EXPECT_EQ(newest_folder(folder.path(), "c-"), "");
  for (const char* name : {"c-2", "c-10", "c-9223372036854775807", "c-011", "other"}) {
    std::filesystem::create_directory(folder.file(name));
  }
  EXPECT_EQ(newest_folder(folder.path(), "c-"), folder.file("c-10"));
}

TEST(CheckpointFolder, IsReadAsItWasWritten) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_1"), "one");
  const Checkpoint checkpoint = open_checkpoint(folder.file("checkpoint_1"));
  EXPECT_EQ(checkpoint.path(), folder.file("checkpoint_1"));
  EXPECT_EQ(content_of(checkpoint), "one");
  EXPECT_EQ(checkpoint.file("state.json"), folder.file("checkpoint_1/state.json"));
  EXPECT_EQ(folder.names(), (Names{"checkpoint_1", "latest"}));
}

TEST(CheckpointFolder, LatestIsARelativeLinkToTheLastOneWritten) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_5"), "five");
  write_checkpoint(folder.file("checkpoint_2"), "two");
  EXPECT_EQ(fs::read_symlink(folder.file("latest")), "checkpoint_2");
  for (const char* name : {"", "/", "/latest", "/latest/", "/checkpoint_2/"}) {
    const Checkpoint checkpoint = open_checkpoint(folder.path() + name);
    EXPECT_EQ(checkpoint.path(), folder.file("checkpoint_2"));
    EXPECT_EQ(content_of(checkpoint), "two");
  }
  EXPECT_EQ(content_of(open_checkpoint(folder.file("checkpoint_5"))), "five");
}

TEST(CheckpointFolder, AnOpenOneStaysWhenLatestMovesOn) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_0"), "old");
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  write_checkpoint(folder.file("checkpoint_1"), "new");
  EXPECT_EQ(content_of(checkpoint), "old");
}

TEST(CheckpointFolder, WorksInTheCurrentFolder) {
  const TemporaryFolder folder;
  const auto before = fs::current_path();
  fs::current_path(folder.path());
  write_checkpoint("checkpoint_0", "old");
  write_checkpoint("checkpoint_1", "new");
  remove_old_checkpoints(".", "checkpoint_", 1);
  EXPECT_EQ(content_of(open_checkpoint(".")), "new");
  EXPECT_EQ(content_of(open_checkpoint("checkpoint_1")), "new");
  EXPECT_EQ(content_of(open_checkpoint("latest")), "new");
  fs::current_path("checkpoint_1");
  EXPECT_EQ(content_of(open_checkpoint(".")), "new");
  fs::current_path(before);
  EXPECT_EQ(folder.names(), (Names{"checkpoint_1", "latest"}));
}

TEST(CheckpointFolder, TakesTheFilesOfSeveralProcesses) {
  const TemporaryFolder folder;
  const std::string path = folder.file("checkpoint_0");
  CheckpointWriter writer(path);
  writer.write("rng_0.json", content_from("x"));
  CheckpointManifest others;
  for (const char* name : {"rng_1.json", "rng_2.json"}) {
    expect_exit_0(in_child([&] { write_checkpoint_file(path, name, content_from("x")); }));
    others[name] = {1, sha256_hex(std::as_bytes(std::span("x", 1)))};
  }
  writer.commit(others);
  EXPECT_EQ(open_checkpoint(path).manifest().size(), 3U);
}

TEST(CheckpointFolder, HandsOutOnlyWhatTheManifestLists) {
  const TemporaryFolder folder;
  {
    CheckpointWriter writer(folder.file("checkpoint_0"));
    writer.write("model.bin", content_from("x"));
    folder.write(".checkpoint_0.partial/notes.txt", "of nobody");
    writer.commit();
  }
  folder.write("checkpoint_0/later.txt", "x");
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  EXPECT_TRUE(checkpoint.contains("model.bin"));
  for (const char* name : {"notes.txt", "later.txt", "manifest.json", "..", "../latest", ""}) {
    EXPECT_FALSE(checkpoint.contains(name));
    EXPECT_ERROR(checkpoint.file(name), DataError,
                 folder.file("checkpoint_0") + ": expected the file \"" + name +
                     "\", got none; hint: " + folder.file("checkpoint_0/manifest.json") +
                     " lists its files");
  }
}

TEST(CheckpointWriter, ShowsNothingBeforeCommitAndLeavesNothingWithoutIt) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_0"), "old");
  {
    CheckpointWriter writer(folder.file("checkpoint_1"));
    writer.write("model.bin", content_from("x"));
    EXPECT_EQ(folder.names(), (Names{".checkpoint_1.partial", "checkpoint_0", "latest"}));
    EXPECT_EQ(content_of(open_checkpoint(folder.path())), "old");
  }
  EXPECT_EQ(folder.names(), (Names{"checkpoint_0", "latest"}));
}

TEST(CheckpointWriter, CreatesTheFoldersAboveIt) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("a/b//c/checkpoint_0/"), "x");
  EXPECT_EQ(content_of(open_checkpoint(folder.file("a/b/c"))), "x");
}

TEST(CheckpointWriter, LeavesLatestAloneIfToldTo) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_0"), "old");
  write_checkpoint(folder.file("best"), "best", {.latest = false});
  EXPECT_EQ(content_of(open_checkpoint(folder.path())), "old");
  EXPECT_EQ(content_of(open_checkpoint(folder.file("best"))), "best");
}

TEST(CheckpointWriter, ReplacesACheckpoint) {
  const TemporaryFolder folder;
  for (const char* text : {"old", "new", "newest"}) {
    write_checkpoint(folder.file("checkpoint_1"), text);
    EXPECT_EQ(content_of(open_checkpoint(folder.path())), text);
    EXPECT_EQ(folder.names(), (Names{"checkpoint_1", "latest"}));
  }
}

TEST(CheckpointWriter, ReplacesADamagedCheckpointAndAnEmptyFolder) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_1"), "old");
  folder.write("checkpoint_1/manifest.json",
               R"({"format": "ladder checkpoint", "version": 1, "fil)");
  fs::create_directory(folder.file("checkpoint_2"));
  for (const char* name : {"checkpoint_1", "checkpoint_2"}) {
    write_checkpoint(folder.file(name), "new");
    EXPECT_EQ(content_of(open_checkpoint(folder.file(name))), "new");
  }
}

TEST(CheckpointWriter, NeverReplacesAnythingElse) {
  const TemporaryFolder folder;
  folder.write("thesis/chapter.txt", "precious");
  folder.write("web/manifest.json", R"({"name": "web app"})");
  folder.write("file", "precious");
  write_checkpoint(folder.file("elsewhere/checkpoint_0"), "precious");
  fs::create_symlink("elsewhere/checkpoint_0", folder.file("link"));
  const Names before = folder.names();
  for (const char* name : {"thesis", "web", "file", "link"}) {
    EXPECT_ERROR(CheckpointWriter(folder.file(name)), SystemError,
                 folder.file(name) +
                     ": replace: File exists; hint: not a checkpoint: name "
                     "another folder, or remove this one");
  }
  EXPECT_EQ(folder.names(), before);
  EXPECT_EQ(folder.read("thesis/chapter.txt"), "precious");
}

TEST(CheckpointWriter, NeverReplacesWhatCameMeanwhile) {
  const TemporaryFolder folder;
  {
    CheckpointWriter writer(folder.file("checkpoint_0"));
    folder.write("checkpoint_0/thesis.txt", "precious");
    EXPECT_ERROR(writer.commit({}), SystemError, "not a checkpoint");
  }
  EXPECT_EQ(folder.read("checkpoint_0/thesis.txt"), "precious");
  EXPECT_EQ(folder.names(), Names{"checkpoint_0"});
}

TEST(CheckpointWriter, NeverReplacesALatestThatIsNoLink) {
  const TemporaryFolder folder;
  folder.write("latest/thesis.txt", "precious");
  EXPECT_ERROR(CheckpointWriter(folder.file("checkpoint_0")), SystemError,
               folder.file("latest") + ": replace: File exists; hint: it must be a link");
  EXPECT_EQ(folder.names(), Names{"latest"});
}

TEST(CheckpointWriter, RefusesAPathWithoutAName) {
  for (const char* path : {"", ".", "..", "/", "a/..", "a/.hidden", "a/latest"}) {
    EXPECT_ERROR(CheckpointWriter{path}, UsageError,
                 std::string("checkpoint: expected a folder with a name of its own, got '") + path +
                     "'; hint: such as checkpoints/checkpoint_1");
  }
}

TEST(CheckpointWriter, RefusesFileNamesThatLeadElsewhere) {
  const TemporaryFolder folder;
  CheckpointWriter writer(folder.file("checkpoint_0"));
  for (const char* name : {"", "..", "../x", "/x", "a b", "manifest.json"}) {
    EXPECT_ERROR(writer.write(name, content_from("x")), UsageError,
                 "expected a name of letters, digits");
    EXPECT_ERROR(write_checkpoint_file(folder.file("checkpoint_0"), name, content_from("x")),
                 UsageError, "expected a name of letters, digits");
  }
  for (const char* name : {"../x", "manifest.json"}) {
    CheckpointWriter other(folder.file("checkpoint_1"));
    EXPECT_ERROR(other.commit({{name, {}}}), UsageError, "expected a name of letters, digits");
  }
}

TEST(CheckpointWriter, MissesAFileThatARankWroteElsewhere) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_0"), "old");
  {
    CheckpointWriter writer(folder.file("checkpoint_1"));
    writer.write("rng_0.json", content_from("x"));
    EXPECT_ERROR(writer.commit({{"rng_1.json", {}}}), SystemError,
                 partial_checkpoint(folder.file("checkpoint_1")) +
                     "/rng_1.json: open: No such file or directory; hint: every rank must write "
                     "its files, and to a disk that all share");
  }
  EXPECT_EQ(content_of(open_checkpoint(folder.path())), "old");
  EXPECT_EQ(folder.names(), (Names{"checkpoint_0", "latest"}));
}

// Such as the file of an earlier run, on the disk of one machine.
TEST(CheckpointWriter, MissesAFileOfAnotherLength) {
  const TemporaryFolder folder;
  CheckpointWriter writer(folder.file("checkpoint_0"));
  write_checkpoint_file(folder.file("checkpoint_0"), "rng_1.json", content_from("x"));
  EXPECT_ERROR(writer.commit({{"rng_1.json", {.bytes = 2}}}), DataError,
               "/rng_1.json: expected 2 bytes, got 1");
}

TEST(CheckpointWriter, TakesNoLinksAndNoFolders) {
  const TemporaryFolder folder;
  folder.write("secret", "x");
  const auto expect_refused = [&](const std::string& name, const std::string& expected) {
    CheckpointWriter writer(folder.file("checkpoint_0"));
    const auto path = folder.file(".checkpoint_0.partial/" + name);
    if (name == "link.bin") fs::create_symlink(folder.file("secret"), path);
    if (name == "folder.bin") fs::create_directory(path);
    if (name == "pipe.bin") {
      ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    }
    EXPECT_ERROR(writer.write(name, content_from("x")), SystemError, "create: File exists");
    EXPECT_ERROR(writer.commit({{name, {.bytes = 1}}}), SystemError, expected);
  };
  expect_refused("link.bin", "/link.bin: open: Too many levels");
  expect_refused("folder.bin", "/folder.bin: open: Is a directory");
  expect_refused("pipe.bin", "/pipe.bin: open: Is a directory");
  EXPECT_EQ(folder.read("secret"), "x");
}

TEST(CheckpointWriter, RemovesWhatKilledRunsLeftOfTheSameKind) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_3"), "three");
  folder.write(".checkpoint_1.partial/model.bin", "half");
  folder.write(".checkpoint_7.partial/model.bin", "half");
  folder.write(".checkpoint_2.removed/model.bin", "half");
  folder.write(".checkpoint_3.replaced/model.bin", "half");
  folder.write(".checkpoint_x.partial/model.bin", "of another kind");
  folder.write(".best.partial/model.bin", "of another kind");
  folder.write("checkpoint_1.partial", "not hidden");
  folder.write(".partial", "a short name");
  fs::create_symlink("nowhere", folder.file(".latest.partial"));
  write_checkpoint(folder.file("checkpoint_4"), "four");
  EXPECT_EQ(folder.names(),
            (Names{".best.partial", ".checkpoint_x.partial", ".partial", "checkpoint_1.partial",
                   "checkpoint_3", "checkpoint_4", "latest"}));
}

TEST(CheckpointWriter, NeverTakesAHiddenFileOfYoursForRemains) {
  const TemporaryFolder folder;
  for (const char* name : {".partial", ".2.partial", "..partial", ".partial2", "7.partial"}) {
    folder.write(name, "precious");
  }
  const Names before = folder.names();
  for (const char* name : {"partial", "a", "partial2"}) {
    const CheckpointWriter writer(folder.file(name));
  }
  EXPECT_EQ(folder.names(), before);
}

TEST(CheckpointWriter, FollowsNoLinkWhenItRemovesRemains) {
  const TemporaryFolder folder;
  folder.write("thesis/chapter.txt", "precious");
  fs::create_symlink("thesis", folder.file(".checkpoint_0.partial"));
  write_checkpoint(folder.file("checkpoint_0"), "new");
  EXPECT_EQ(folder.read("thesis/chapter.txt"), "precious");
}

// A kill between the two renames that replace a folder where names cannot be exchanged.
TEST(CheckpointFolder, AReplacedOneIsFoundUntilItsSuccessorIsThere) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_1"), "old");
  fs::rename(folder.file("checkpoint_1"), folder.file(".checkpoint_1.replaced"));
  EXPECT_EQ(content_of(open_checkpoint(folder.path())), "old");
  EXPECT_EQ(content_of(open_checkpoint(folder.file("checkpoint_1"))), "old");
  {
    const CheckpointWriter writer(folder.file("checkpoint_2"));
  }
  EXPECT_EQ(folder.names(), (Names{"checkpoint_1", "latest"}));
  EXPECT_EQ(content_of(open_checkpoint(folder.path())), "old");
}

// A whole checkpoint, and what its files held.
class DamagedCheckpoint : public testing::Test {
 protected:
  DamagedCheckpoint() {
    write_checkpoint(path_, "one");
    for (const char* name : {"model.bin", "optimizer.bin", "state.json", "manifest.json"}) {
      names_.emplace_back(name);
    }
  }

  std::string read(const std::string& name) { return folder_.read("checkpoint_1/" + name); }
  void write(const std::string& name, std::string_view text) {
    folder_.write("checkpoint_1/" + name, text);
  }
  void remove(const std::string& name) { fs::remove_all(path_ + "/" + name); }

  // Expects an error that names the file, with exit code 3.
  void expect_refused(const std::string& name, const std::string& text) {
    EXPECT_ERROR(open_checkpoint(path_), DataError, path_ + "/" + name + ": expected " + text);
    EXPECT_ERROR(open_checkpoint(folder_.path()), DataError, path_ + "/" + name);
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.file("checkpoint_1");
  std::vector<std::string> names_;  // of all files
};

TEST_F(DamagedCheckpoint, EveryFlippedBitIsSeen) {
  for (const std::string& name : names_) {
    std::fstream file(path_ + "/" + name, std::ios::binary | std::ios::in | std::ios::out);
    const std::string whole = read(name);
    const auto overwrite = [&](std::size_t at, int byte) {
      file.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(byte)).flush();
    };
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        overwrite(at, whole[at] ^ (1 << bit));
        EXPECT_ERROR(open_checkpoint(path_), DataError, path_ + "/");
      }
      overwrite(at, whole[at]);
    }
  }
  EXPECT_EQ(content_of(open_checkpoint(path_)), "one");
}

TEST_F(DamagedCheckpoint, EveryOtherLengthIsSeen) {
  for (const std::string& name : names_) {
    const std::string whole = read(name);
    write(name, whole + "x");
    EXPECT_ERROR(open_checkpoint(path_), DataError, path_ + "/" + name);
    // The manifest ends with a new line, which nobody misses.
    std::size_t size = name == "manifest.json" ? whole.size() - 1 : whole.size();
    while (size-- > 0) {
      fs::resize_file(path_ + "/" + name, size);
      EXPECT_ERROR(open_checkpoint(path_), DataError, path_ + "/" + name);
    }
    write(name, whole);
  }
}

TEST_F(DamagedCheckpoint, TheMessageSaysWhatWasExpectedAndFound) {
  write("model.bin", "short");
  expect_refused(
      "model.bin",
      "16 bytes, got 5; hint: copy it again from its source, or start over: rm -r " + path_);
  write("model.bin", "model.bin of onE");
  expect_refused("model.bin", "sha256 806263616b28…, got e9c03099cd2d…; hint: ");
}

TEST_F(DamagedCheckpoint, AMissingFileIsNamed) {
  remove("state.json");
  expect_refused("state.json", "a file, got none; hint: ");
}

TEST_F(DamagedCheckpoint, TheManifestIsNamedToo) {
  remove("manifest.json");
  expect_refused("manifest.json",
                 "a file, got none; hint: name the folder of a checkpoint: ls " + path_);
  write("manifest.json", "[]");
  expect_refused("manifest.json", "an object, got []; hint: copy it again");
  write("manifest.json", std::string(5'000'000, ' '));
  expect_refused("manifest.json", "at most 4194304 bytes, got ");
}

TEST_F(DamagedCheckpoint, LinksFoldersAndPipesAreNoFiles) {
  for (const char* name : {"model.bin", "manifest.json"}) {
    fs::rename(path_ + "/" + name, folder_.file("moved"));
    fs::create_symlink("../moved", path_ + "/" + name);
    expect_refused(name, "a file, got a link");
    remove(name);
    fs::create_directory(path_ + "/" + name);
    expect_refused(name, "a file, got a folder");
    remove(name);
    ASSERT_EQ(::mkfifo((path_ + "/" + name).c_str(), 0600), 0);
    expect_refused(name, "a file, got a pipe");
    remove(name);
    fs::rename(folder_.file("moved"), path_ + "/" + name);
  }
}

TEST_F(DamagedCheckpoint, TheHintNamesTheNewestOlderOneThatIsWhole) {
  for (const char* name : {"checkpoint_9", "checkpoint_10", "checkpoint_11", "checkpoint_12"}) {
    write_checkpoint(folder_.file(name), name);
  }
  write_checkpoint(folder_.file("other_10"), "of another kind");
  folder_.write("checkpoint_11/model.bin", "damaged");
  folder_.write("checkpoint_10/model.bin", "damaged");
  EXPECT_ERROR(open_checkpoint(folder_.file("checkpoint_11")), DataError,
               "; hint: " + folder_.file("checkpoint_9") + " is whole: resume from that one");
  remove("state.json");
  EXPECT_ERROR(open_checkpoint(path_), DataError, "a file, got none; hint: copy it again");
}

TEST(CheckpointFolder, AMissingOneIsNamedWithWhatElseThereIs) {
  const TemporaryFolder folder;
  EXPECT_ERROR(open_checkpoint(folder.file("checkpoint_2")), DataError,
               folder.file("checkpoint_2") +
                   ": expected a checkpoint, got none; hint: name the "
                   "folder of a checkpoint: ls " +
                   folder.path());
  write_checkpoint(folder.file("checkpoint_1"), "one");
  EXPECT_ERROR(open_checkpoint(folder.file("checkpoint_2")), DataError,
               folder.file("checkpoint_2") + ": expected a checkpoint, got none; hint: " +
                   folder.file("checkpoint_1") + " is whole");
  write_checkpoint(folder.file("checkpoint_2"), "two");
  fs::remove_all(folder.file("checkpoint_2"));
  EXPECT_ERROR(open_checkpoint(folder.path()), DataError,
               folder.file("checkpoint_2") + ": expected a checkpoint, got none; hint: " +
                   folder.file("checkpoint_1") + " is whole");
  fs::remove(folder.file("latest"));
  EXPECT_ERROR(open_checkpoint(folder.path()), DataError,
               "/manifest.json: expected a file, got none; hint: name the folder of a checkpoint: "
               "ls " +
                   folder.path());
  EXPECT_ERROR(open_checkpoint(folder.file("checkpoint_1/model.bin")), DataError,
               ": expected a checkpoint, got no folder; hint: name the folder of the checkpoint: " +
                   folder.file("checkpoint_1"));
  EXPECT_ERROR(
      open_checkpoint(folder.write("file", "")), DataError,
      ": expected a checkpoint, got no folder; hint: name the folder of a checkpoint: ls " +
          folder.path());
  EXPECT_ERROR(open_checkpoint(""), DataError, ": expected a checkpoint, got none");
}

// A folder that is there and cannot be opened is no folder that a writer has just replaced: the
// error comes at once, long before the time in which one would be looked for again.
TEST(CheckpointFolder, OneThatTheSystemRefusesIsNotTriedAgain) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_1"), "one");
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};
  const auto started = std::chrono::steady_clock::now();
  ::setrlimit(RLIMIT_NOFILE, &none);
  EXPECT_ERROR(open_checkpoint(folder.file("checkpoint_1")), SystemError,
               folder.file("checkpoint_1") + ": open: Too many open files; hint: this process may");
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(5));
}

std::vector<std::int64_t> numbers(const std::string& parent, std::string_view prefix) {
  std::vector<std::int64_t> numbers;
  for (const auto& checkpoint : list_checkpoints(parent, prefix)) {
    EXPECT_EQ(checkpoint.path,
              parent + "/" + std::string(prefix) + std::to_string(checkpoint.number));
    numbers.push_back(checkpoint.number);
  }
  return numbers;
}

using Numbers = std::vector<std::int64_t>;

TEST(ListCheckpoints, SortsByNumberAndTakesCheckpointsOnly) {
  const TemporaryFolder folder;
  for (const char* name : {"checkpoint_10", "checkpoint_2", "checkpoint_0", "checkpoint_03",
                           "checkpoint_-4", "checkpoint_+4", "checkpoint_4x", "checkpoint_",
                           "checkpoint_9223372036854775807", "checkpoint_9223372036854775808"}) {
    write_checkpoint(folder.file(name), "x");
  }
  write_checkpoint(folder.file("run2-10"), "x");
  write_checkpoint(folder.file("run210"), "x");
  folder.write("checkpoint_5/model.bin", "no manifest");
  folder.write("checkpoint_6", "a file");
  folder.write("checkpoint_7/manifest.json", R"({"name": "web app"})");
  folder.write("checkpoint_9/manifest.json", R"({"format": "ladder checkpoint", "version": 2,)");
  fs::create_symlink("checkpoint_2", folder.file("checkpoint_8"));
  EXPECT_EQ(numbers(folder.path(), "checkpoint_"), (Numbers{0, 2, 10}));
  EXPECT_EQ(numbers(folder.path(), "run2-"), Numbers{10});
  EXPECT_EQ(numbers(folder.path(), "run2"), Numbers{10});
  EXPECT_EQ(numbers(folder.path(), "none"), Numbers{});
  EXPECT_EQ(numbers(folder.file("nowhere"), "checkpoint_"), Numbers{});
}

// The newest intact checkpoint, and the errors of those passed over.
std::pair<std::string, std::vector<std::string>> newest(const TemporaryFolder& folder) {
  std::vector<std::string> errors;
  const auto path = newest_intact_checkpoint(
      folder.path(), "checkpoint_", [&](const std::string& error) { errors.push_back(error); });
  return {path, errors};
}

TEST(NewestIntactCheckpoint, PassesOverDamagedOnesAndNamesTheirFaults) {
  const TemporaryFolder folder;
  EXPECT_EQ(newest(folder).first, "");
  for (const char* name : {"checkpoint_2", "checkpoint_9", "checkpoint_10", "checkpoint_11"}) {
    write_checkpoint(folder.file(name), "content");
  }
  EXPECT_EQ(newest(folder).first, folder.file("checkpoint_11"));
  EXPECT_EQ(newest(folder).second, std::vector<std::string>{});
  fs::remove(folder.file("checkpoint_11/manifest.json"));
  folder.write("checkpoint_10/model.bin", "Content");
  folder.write("checkpoint_12", "a file");
  fs::create_symlink("checkpoint_2", folder.file("checkpoint_13"));
  folder.write(".checkpoint_14.partial/model.bin", "content");
  const auto [path, errors] = newest(folder);
  EXPECT_EQ(path, folder.file("checkpoint_9"));
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_TRUE(errors[0].starts_with(folder.file("checkpoint_11/manifest.json") + ": expected "))
      << errors[0];
  EXPECT_TRUE(errors[1].starts_with(folder.file("checkpoint_10/model.bin") + ": expected 20 bytes"))
      << errors[1];
  EXPECT_EQ(newest_intact_checkpoint(folder.file("nowhere"), "checkpoint_", [](const auto&) {}),
            "");
}

// A run that starts over would replace and remove them.
TEST(NewestIntactCheckpoint, RefusesWhatMayBeWholeAndDamageAlone) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_1"), "content");
  write_checkpoint(folder.file("checkpoint_2"), "content");
  const auto file = folder.file("checkpoint_2/model.bin");
  fs::permissions(file, fs::perms::none);
  fs::permissions(folder.path(), fs::perms::all);
  const uid_t user = geteuid();
  constexpr uid_t kNobody = 65534;
  if (user == 0) {  // who may read everything
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  EXPECT_ERROR(newest(folder), SystemError,
               file + ": open: Permission denied; hint: check the permissions: namei -l " + file);
  ASSERT_EQ(seteuid(user), 0);
  folder.write("checkpoint_1/model.bin", "Content");
  fs::remove(file);
  EXPECT_ERROR(newest(folder), DataError,
               folder.path() + ": no whole checkpoint: " + file +
                   ": expected a file, got none; hint: name another folder to train from the ");
}

TEST(RequireNoForeignFolders, RefusesWhatALaterCheckpointCouldNotReplace) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_1"), "content");
  fs::create_directory(folder.file("checkpoint_2"));
  folder.write("checkpoint_x/thesis.txt", "");
  require_no_foreign_folders(folder.path(), "checkpoint_");
  for (const char* name : {"checkpoint_3", "checkpoint_4/thesis.txt"}) {
    folder.write(name, "");
    const auto path = folder.file(std::string(name).substr(0, 12));
    EXPECT_ERROR(require_no_foreign_folders(folder.path(), "checkpoint_"), SystemError,
                 path + ": replace: File exists; hint: not a checkpoint: name another folder");
    fs::remove_all(path);
  }
}

TEST(CheckpointExists, AlsoWhileItIsReplaced) {
  const TemporaryFolder folder;
  const auto path = folder.file("snapshot");
  EXPECT_FALSE(checkpoint_exists(path));
  write_checkpoint(path, "x", {.latest = false});
  EXPECT_TRUE(checkpoint_exists(path));
  EXPECT_TRUE(checkpoint_exists(path + "/"));
  fs::rename(path, folder.file(".snapshot.replaced"));
  EXPECT_TRUE(checkpoint_exists(path));
  folder.write("other/file", "no checkpoint");
  EXPECT_TRUE(checkpoint_exists(folder.file("other"))) << "it is refused, not replaced";
  fs::create_directory(folder.file("empty"));
  EXPECT_FALSE(checkpoint_exists(folder.file("empty")));
}

// Numbers of the checkpoints that are left of those given.
Numbers left(const Numbers& written, std::size_t total_limit) {
  const TemporaryFolder folder;
  for (const auto number : written) {
    write_checkpoint(folder.file("checkpoint_" + std::to_string(number)), "x");
  }
  write_checkpoint(folder.file("best_1"), "of another kind", {.latest = false});
  folder.write("checkpoint_1000/thesis.txt", "not a checkpoint");
  remove_old_checkpoints(folder.path(), "checkpoint_", total_limit);
  EXPECT_EQ(content_of(open_checkpoint(folder.path())), "x");
  EXPECT_EQ(folder.names().size(), numbers(folder.path(), "checkpoint_").size() + 3);
  return numbers(folder.path(), "checkpoint_");
}

TEST(RemoveOldCheckpoints, KeepsTheNewest) {
  EXPECT_EQ(left({1, 2, 9, 10, 11}, 2), (Numbers{10, 11}));
  EXPECT_EQ(left({1, 2, 9, 10, 11}, 1), (Numbers{11}));
  EXPECT_EQ(left({1, 2}, 2), (Numbers{1, 2}));
  EXPECT_EQ(left({1, 2}, 3), (Numbers{1, 2}));
}

TEST(RemoveOldCheckpoints, KeepsTheOneThatLatestNames) {
  EXPECT_EQ(left({2, 3, 1}, 2), (Numbers{1, 3}));
  EXPECT_EQ(left({2, 3, 1}, 1), (Numbers{1}));
}

TEST(RemoveOldCheckpoints, KeepsThoseItIsToldTo) {
  const TemporaryFolder folder;
  for (const std::int64_t number : {1, 2, 3, 4}) {
    write_checkpoint(folder.file("checkpoint_" + std::to_string(number)), "x", {.latest = false});
  }
  remove_old_checkpoints(folder.path(), "checkpoint_", 2, {folder.file("checkpoint_2")});
  EXPECT_EQ(numbers(folder.path(), "checkpoint_"), (Numbers{2, 4}));
  remove_old_checkpoints(folder.path(), "checkpoint_", 1, {folder.file("checkpoint_2")});
  EXPECT_EQ(numbers(folder.path(), "checkpoint_"), (Numbers{2}));
}

// Later ones still go.
TEST(RemoveOldCheckpoints, OneThatStaysIsReported) {
  const TemporaryFolder folder;
  for (const std::int64_t number : {1, 2, 3}) {
    write_checkpoint(folder.file("checkpoint_" + std::to_string(number)), "x");
  }
  const Immutable immutable(folder.file("checkpoint_1"));
  if (!immutable) GTEST_SKIP() << "a checkpoint that stays takes root";
  std::vector<std::string> errors;
  remove_old_checkpoints(folder.path(), "checkpoint_", 1, {},
                         [&](const std::string& error) { errors.push_back(error); });
  EXPECT_EQ(numbers(folder.path(), "checkpoint_"), (Numbers{1, 3}));
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_TRUE(errors[0].starts_with(folder.file("checkpoint_1: remove: "))) << errors[0];
}

TEST(RemoveOldCheckpoints, RefusesToKeepNone) {
  EXPECT_ERROR(remove_old_checkpoints("nowhere", "checkpoint_", 0), UsageError,
               "total_limit: expected 1 or more, got 0");
}

TEST(RemoveOldCheckpoints, AHalfRemovedOneIsInNobodysWay) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_1"), "one");
  write_checkpoint(folder.file("checkpoint_2"), "two");
  folder.write(".checkpoint_1.removed/model.bin", "of a killed run");
  remove_old_checkpoints(folder.path(), "checkpoint_", 1);
  EXPECT_EQ(folder.names(), (Names{"checkpoint_2", "latest"}));
}

}  // namespace
}  // namespace ladder
