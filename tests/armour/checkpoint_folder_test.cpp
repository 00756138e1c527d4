// SPDX-License-Identifier: Apache-2.0
#include "ladder/armour/checkpoint_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/io/atomic_file.h"
#include "tests/support/checkpoints.h"
#include "tests/support/expect_error.h"
#include "tests/support/immutable.h"
#include "tests/support/odd_paths.h"
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

TEST(CheckpointFolder, IsReadAsItWasWrittenAlsoWhenLatestMovesOn) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_1"), "one");
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  EXPECT_EQ(checkpoint.path(), folder.file("checkpoint_1"));
  EXPECT_EQ(checkpoint.file("state.json"), folder.file("checkpoint_1/state.json"));
  EXPECT_EQ(folder.names(), (Names{"checkpoint_1", "latest"}));
  write_checkpoint(folder.file("checkpoint_2"), "two");
  EXPECT_EQ(content_of(checkpoint), "one");
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

TEST(CheckpointFolder, WorksInTheCurrentFolder) {
  const TemporaryFolder folder;
  const auto before = fs::current_path();
  fs::current_path(folder.path());
  write_checkpoint("checkpoint_0", "old");
  write_checkpoint("checkpoint_1", "new");
  remove_old_checkpoints(".", "checkpoint_", 1);
  for (const char* path : {".", "checkpoint_1", "latest"}) {
    EXPECT_EQ(content_of(open_checkpoint(path)), "new") << path;
  }
  fs::current_path("checkpoint_1");
  EXPECT_EQ(content_of(open_checkpoint(".")), "new");
  fs::current_path(before);
  EXPECT_EQ(folder.names(), (Names{"checkpoint_1", "latest"}));
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
  for (const std::string name :
       {"notes.txt", "later.txt", "manifest.json", "..", "../latest", ""}) {
    EXPECT_FALSE(checkpoint.contains(name));
    EXPECT_ERROR(checkpoint.file(name), DataError,
                 folder.file("checkpoint_0") + ": expected the file \"" + name + "\", got none");
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

TEST(CheckpointWriter, CreatesTheFoldersAboveItAndLeavesLatestAloneIfToldTo) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("a/b//c/checkpoint_0/"), "old");
  write_checkpoint(folder.file("a/b/c/best"), "best", {.latest = false});
  EXPECT_EQ(content_of(open_checkpoint(folder.file("a/b/c"))), "old");
  EXPECT_EQ(content_of(open_checkpoint(folder.file("a/b/c/best"))), "best");
}

TEST(CheckpointWriter, ReplacesACheckpointADamagedOneAndAnEmptyFolder) {
  const TemporaryFolder folder;
  for (const char* text : {"old", "new", "newest"}) {
    write_checkpoint(folder.file("checkpoint_1"), text);
    EXPECT_EQ(content_of(open_checkpoint(folder.path())), text);
    EXPECT_EQ(folder.names(), (Names{"checkpoint_1", "latest"}));
  }
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
                 folder.file(name) + ": replace: File exists; hint: not a checkpoint");
  }
  {
    CheckpointWriter writer(folder.file("new"));
    folder.write("new/thesis.txt", "came meanwhile");
    EXPECT_ERROR(writer.commit({}), SystemError, "not a checkpoint");
  }
  EXPECT_EQ(folder.read("new/thesis.txt"), "came meanwhile");
  fs::remove_all(folder.file("new"));
  folder.write("latest/thesis.txt", "precious");
  EXPECT_ERROR(CheckpointWriter(folder.file("new")), SystemError,
               folder.file("latest") + ": replace: File exists; hint: it must be a link");
  fs::remove_all(folder.file("latest"));
  EXPECT_EQ(folder.names(), before);
  EXPECT_EQ(folder.read("thesis/chapter.txt"), "precious");
}

TEST(CheckpointWriter, RefusesNamesThatLeadElsewhere) {
  for (const std::string path : {"", ".", "..", "/", "a/..", "a/.hidden", "a/latest"}) {
    EXPECT_ERROR(CheckpointWriter{path}, UsageError,
                 "checkpoint: expected a folder with a name of its own, got '" + path + "'; hint");
  }
  const TemporaryFolder folder;
  const std::string expected = "expected a name of letters, digits";
  CheckpointWriter writer(folder.file("checkpoint_0"));
  for (const char* name : {"", "..", "../x", "/x", "a b", "manifest.json"}) {
    EXPECT_ERROR(writer.write(name, content_from("x")), UsageError, expected);
    EXPECT_ERROR(write_checkpoint_file(folder.file("checkpoint_0"), name, content_from("x")),
                 UsageError, expected);
    CheckpointWriter other(folder.file("checkpoint_1"));
    EXPECT_ERROR(other.commit({{name, {}}}), UsageError, expected);
  }
}

TEST(CheckpointWriter, MissesAFileThatARankWroteElsewhereAndOneOfAnotherLength) {
  const TemporaryFolder folder;
  const auto path = folder.file("checkpoint_1");
  write_checkpoint(folder.file("checkpoint_0"), "old");
  {
    CheckpointWriter writer(path);
    writer.write("rng_0.json", content_from("x"));
    EXPECT_ERROR(writer.commit({{"rng_1.json", {}}}), SystemError,
                 partial_checkpoint(path) + "/rng_1.json: open: No such file or directory; hint: ",
                 "to a disk that all share");
  }
  {
    CheckpointWriter writer(path);
    write_checkpoint_file(path, "rng_1.json", content_from("x"));  // as of an earlier run
    EXPECT_ERROR(writer.commit({{"rng_1.json", {.bytes = 2}}}), DataError,
                 "/rng_1.json: expected 2 bytes, got 1");
  }
  EXPECT_EQ(content_of(open_checkpoint(folder.path())), "old");
  EXPECT_EQ(folder.names(), (Names{"checkpoint_0", "latest"}));
}

TEST(CheckpointWriter, TakesNoLinksFoldersAndPipes) {
  const TemporaryFolder folder;
  folder.write("secret", "x");
  const auto expect_refused = [&](const auto& make, const std::string& expected) {
    CheckpointWriter writer(folder.file("checkpoint_0"));
    make(folder.file(".checkpoint_0.partial/m.bin"));
    EXPECT_ERROR(writer.write("m.bin", content_from("x")), SystemError, "create: File exists");
    EXPECT_ERROR(writer.commit({{"m.bin", {.bytes = 1}}}), SystemError,
                 "/m.bin: open: " + expected);
  };
  expect_refused([&](const auto& path) { make_link(path, folder.file("secret")); },
                 "Too many levels");
  expect_refused([](const auto& path) { fs::create_directory(path); }, "Is a directory");
  expect_refused([](const auto& path) { make_pipe(path); }, "Is a directory");
  EXPECT_EQ(folder.read("secret"), "x");
}

TEST(CheckpointWriter, RemovesWhatKilledRunsLeftOfTheSameKindAndFollowsNoLink) {
  const TemporaryFolder folder;
  folder.write("thesis/chapter.txt", "precious");
  write_checkpoint(folder.file("checkpoint_3"), "three");
  for (const char* name :
       {".checkpoint_1.partial", ".checkpoint_7.partial", ".checkpoint_2.removed",
        ".checkpoint_3.replaced", ".checkpoint_x.partial", ".best.partial"}) {
    folder.write(std::string(name) + "/model.bin", "half");
  }
  folder.write("checkpoint_1.partial", "not hidden");
  folder.write(".partial", "a short name");
  fs::create_symlink("nowhere", folder.file(".latest.partial"));
  fs::create_symlink("thesis", folder.file(".checkpoint_4.partial"));
  write_checkpoint(folder.file("checkpoint_4"), "four");
  EXPECT_EQ(folder.names(),
            (Names{".best.partial", ".checkpoint_x.partial", ".partial", "checkpoint_1.partial",
                   "checkpoint_3", "checkpoint_4", "latest", "thesis"}));
  EXPECT_EQ(folder.read("thesis/chapter.txt"), "precious");
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
  expect_refused("model.bin",
                 "16 bytes, got 5; hint: copy it again from its source, or start over");
  write("model.bin", "model.bin of onE");
  expect_refused("model.bin", "sha256 806263616b28…, got e9c03099cd2d…; hint: ");
  write("model.bin", "model.bin of one");
  remove("state.json");
  expect_refused("state.json", "a file, got none; hint: ");
  remove("manifest.json");
  expect_refused("manifest.json", "a file, got none; hint: name the folder of a checkpoint: ls ");
  write("manifest.json", "[]");
  expect_refused("manifest.json", "an object, got []; hint: copy it again");
  write("manifest.json", std::string(5'000'000, ' '));
  expect_refused("manifest.json", "at most 4194304 bytes, got ");
}

TEST_F(DamagedCheckpoint, LinksFoldersAndPipesAreNoFiles) {
  for (const std::string name : {"model.bin", "manifest.json"}) {
    const auto path = path_ + "/" + name;
    fs::rename(path, folder_.file("moved"));
    make_link(path, "../moved");
    expect_refused(name, "a file, got a link");
    remove(name);
    fs::create_directory(path);
    expect_refused(name, "a file, got a folder");
    remove(name);
    make_pipe(path);
    expect_refused(name, "a file, got a pipe");
    remove(name);
    fs::rename(folder_.file("moved"), path);
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
  const auto second = folder.file("checkpoint_2");
  const auto expect_refused = [](const std::string& path, const std::string& text) {
    EXPECT_ERROR(open_checkpoint(path), DataError, text);
  };
  const auto none = second + ": expected a checkpoint, got none; hint: ";
  expect_refused(second, none + "name the folder of a checkpoint: ls " + folder.path());
  write_checkpoint(folder.file("checkpoint_1"), "one");
  expect_refused(second, none + folder.file("checkpoint_1") + " is whole");
  write_checkpoint(second, "two");
  fs::remove_all(second);
  expect_refused(folder.path(), none + folder.file("checkpoint_1") + " is whole");
  fs::remove(folder.file("latest"));
  expect_refused(folder.path(), "/manifest.json: expected a file, got none; hint: name the folder");
  expect_refused(
      folder.file("checkpoint_1/model.bin"),
      "got no folder; hint: name the folder of the checkpoint: " + folder.file("checkpoint_1"));
  expect_refused(folder.write("file", ""),
                 "got no folder; hint: name the folder of a checkpoint: ls " + folder.path());
  expect_refused("", ": expected a checkpoint, got none");
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
  EXPECT_EQ(newest(folder), std::pair(folder.file("checkpoint_11"), Names{}));
  fs::remove(folder.file("checkpoint_11/manifest.json"));
  folder.write("checkpoint_10/model.bin", "Content");
  folder.write("checkpoint_12", "a file");
  fs::create_symlink("checkpoint_2", folder.file("checkpoint_13"));
  folder.write(".checkpoint_14.partial/model.bin", "content");
  const auto [path, errors] = newest(folder);
  EXPECT_EQ(path, folder.file("checkpoint_9"));
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_TRUE(errors[0].starts_with(folder.file("checkpoint_11/manifest.json: "))) << errors[0];
  EXPECT_TRUE(errors[1].starts_with(folder.file("checkpoint_10/model.bin: "))) << errors[1];
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
  EXPECT_ERROR(newest(folder), SystemError, file + ": open: Permission denied; hint: check");
  ASSERT_EQ(seteuid(user), 0);
  folder.write("checkpoint_1/model.bin", "Content");
  fs::remove(file);
  EXPECT_ERROR(newest(folder), DataError, ": no whole checkpoint: " + file + ": expected a file");
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
                 path + ": replace: File exists; hint: not a checkpoint");
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

// --- the store of programs without this one ---

void write_plain(const CheckpointStore& store, const std::string& path, const std::string& text) {
  const auto draft = store.begin(path, {});
  draft->commit({{"model.bin", write_checkpoint_file(path, "model.bin", content_from(text))}});
}

std::string plain_text(const CheckpointStore& store, const std::string& path) {
  std::string text;
  std::ifstream(store.open(path).file("model.bin")) >> text;
  return text;
}

TEST(PlainStore, ReplacesACheckpointAsAWhole) {
  const TemporaryFolder folder;
  const CheckpointStore store;
  const auto path = folder.file("a/snapshot");
  EXPECT_ERROR(store.open(path), DataError, path + ": expected a checkpoint, got none");
  write_plain(store, path, "one");
  write_plain(store, path + "/", "two");
  EXPECT_EQ(plain_text(store, path), "two");
  EXPECT_ERROR(store.open(path).file("x"), DataError, "expected the file \"x\", got none");
  {
    const auto given_up = store.begin(path, {});
    write_checkpoint_file(path, "model.bin", content_from("never"));
  }
  EXPECT_EQ(plain_text(store, path), "two");
  EXPECT_EQ(names_in(folder.file("a")), std::vector<std::string>{"snapshot"});
}

TEST(PlainStore, FindsTheOldCheckpointAfterAKillBetweenTwoNames) {
  const TemporaryFolder folder;
  const CheckpointStore store;
  const auto path = folder.file("snapshot");
  write_plain(store, path, "old");
  fs::rename(path, replaced_checkpoint(path));
  folder.write(".snapshot.partial/left", "by the kill");
  EXPECT_EQ(plain_text(store, path), "old");
  write_plain(store, path, "new");
  EXPECT_EQ(plain_text(store, path), "new");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"snapshot"});
}

TEST(PlainStore, ReplacesNoOtherFolder) {
  const TemporaryFolder folder;
  const CheckpointStore store;
  EXPECT_ERROR(store.begin(folder.file(".."), {}), UsageError, "a folder with a name of its own");
  folder.write("photos/holiday.jpg", "");
  EXPECT_ERROR(write_plain(store, folder.file("photos"), "x"), SystemError,
               "a checkpoint has no holiday.jpg: name another folder");
  EXPECT_TRUE(fs::exists(folder.file("photos/holiday.jpg")));
  folder.write("settings/editor.json", "");
  EXPECT_ERROR(write_plain(store, folder.file("settings"), "x"), SystemError, "no editor.json");
  // Of two ranks, before one goes on alone.
  folder.write("run/model.bin", "");
  folder.write("run/random_states_1.safetensors", "");
  folder.write("run/state_rank_1.json", "");
  write_plain(store, folder.file("run"), "one");
  EXPECT_EQ(store.open(folder.file("run")).manifest().size(), 1U);
  write_checkpoint(folder.file("durable"), "x");
  EXPECT_EQ(store.open(folder.file("durable")).manifest().size(), 3U);
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

TEST(RemoveOldCheckpoints, KeepsTheNewestTheOneThatLatestNamesAndThoseItIsToldTo) {
  EXPECT_EQ(left({1, 2, 9, 10, 11}, 2), (Numbers{10, 11}));
  EXPECT_EQ(left({1, 2, 9, 10, 11}, 1), (Numbers{11}));
  EXPECT_EQ(left({1, 2}, 2), (Numbers{1, 2}));
  EXPECT_EQ(left({1, 2}, 3), (Numbers{1, 2}));
  EXPECT_EQ(left({2, 3, 1}, 2), (Numbers{1, 3}));
  EXPECT_EQ(left({2, 3, 1}, 1), (Numbers{1}));
  const TemporaryFolder folder;
  for (const std::int64_t number : {1, 2, 3, 4}) {
    write_checkpoint(folder.file("checkpoint_" + std::to_string(number)), "x", {.latest = false});
  }
  for (const std::size_t total_limit : {2U, 1U}) {
    remove_old_checkpoints(folder.path(), "checkpoint_", total_limit,
                           {folder.file("checkpoint_2")});
    EXPECT_EQ(numbers(folder.path(), "checkpoint_"),
              total_limit == 2 ? (Numbers{2, 4}) : Numbers{2});
  }
  EXPECT_ERROR(remove_old_checkpoints("nowhere", "checkpoint_", 0), UsageError,
               "total_limit: expected 1 or more, got 0");
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
