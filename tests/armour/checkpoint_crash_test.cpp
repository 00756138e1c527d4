// SPDX-License-Identifier: Apache-2.0
//
// What is left of a checkpoint when its writer is killed, or refused, at any one of the calls that
// change the disk. Nothing of it may depend on luck, so every call has its turn.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <functional>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/armour/checkpoint_folder.h"
#include "ladder/core/error.h"
#include "tests/support/checkpoints.h"
#include "tests/support/expect_error.h"
#include "tests/support/faulty_calls.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// What is on disk before, and what is then done to it.
struct Scenario {
  std::string name;
  std::function<void(const TemporaryFolder&)> before;
  std::function<void(const TemporaryFolder&)> change;
  Names after;  // all names in the folder when the change is through
  bool without_exchange = false;
};

void PrintTo(const Scenario& scenario, std::ostream* stream) { *stream << scenario.name; }

void write_old(const TemporaryFolder& folder, const char* name) {
  write_checkpoint(folder.file(name), "old");
}
void write_new(const TemporaryFolder& folder, const char* name) {
  write_checkpoint(folder.file(name), "new");
}

std::vector<Scenario> scenarios() {
  const auto old_0 = [](const TemporaryFolder& folder) { write_old(folder, "checkpoint_0"); };
  const auto old_1 = [](const TemporaryFolder& folder) { write_old(folder, "checkpoint_1"); };
  const auto new_1 = [](const TemporaryFolder& folder) { write_new(folder, "checkpoint_1"); };
  const auto old_and_remains = [](const TemporaryFolder& folder) {
    write_old(folder, "checkpoint_0");
    folder.write(".checkpoint_1.partial/model.bin", "half");
    folder.write(".checkpoint_1.removed/model.bin", "half");
  };
  const auto put_aside = [](const TemporaryFolder& folder) {
    write_old(folder, "checkpoint_1");
    fs::rename(folder.file("checkpoint_1"), folder.file(".checkpoint_1.replaced"));
  };
  const auto three = [](const TemporaryFolder& folder) {
    write_old(folder, "checkpoint_0");
    write_old(folder, "checkpoint_1");
    write_old(folder, "checkpoint_2");
  };
  const auto rotate = [](const TemporaryFolder& folder) {
    remove_old_checkpoints(folder.path(), "checkpoint_", 1);
  };
  const Names one = {"checkpoint_1", "latest"};
  const Names two = {"checkpoint_0", "checkpoint_1", "latest"};
  return {{"Another", old_0, new_1, two},
          {"AnotherAfterAKill", old_and_remains, new_1, two},
          {"Replaced", old_1, new_1, one},
          {"ReplacedInTwoSteps", old_1, new_1, one, true},
          {"ReplacedInTwoStepsAfterAKill", put_aside, new_1, one, true},
          {"Rotated", three, rotate, {"checkpoint_2", "latest"}}};
}

class Crash : public testing::TestWithParam<Scenario> {
 protected:
  // The checkpoint that `latest` leads to is whole, and so is every other that can be seen.
  static std::string expect_whole(const TemporaryFolder& folder) {
    for (const auto& checkpoint : list_checkpoints(folder.path())) {
      content_of(open_checkpoint(checkpoint.path));
    }
    return content_of(open_checkpoint(folder.path()));
  }

  static Names visible(const TemporaryFolder& folder) {
    Names names = folder.names();
    std::erase_if(names, [](const auto& name) { return name.starts_with('.'); });
    return names;
  }

  static bool has_hidden(const TemporaryFolder& folder) {
    return visible(folder) != folder.names();
  }

  // Hidden is only what must wait: an old one whose place is empty, and one that is being removed.
  static bool has_needless(const TemporaryFolder& folder) {
    Names names = folder.names();
    std::erase_if(names, [&](const auto& name) {
      const bool waits =
          name == ".checkpoint_1.replaced" && !fs::exists(folder.file("checkpoint_1"));
      return !name.starts_with('.') || waits || name.ends_with(".removed");
    });
    return !names.empty();
  }

  // The next run is not disturbed, and clears up.
  static void expect_next_run(const TemporaryFolder& folder) {
    GetParam().change(folder);
    expect_whole(folder);
    write_checkpoint(folder.file("checkpoint_9"), "next");
    EXPECT_EQ(expect_whole(folder), "next");
    EXPECT_FALSE(has_hidden(folder)) << testing::PrintToString(folder.names());
  }

  static bool expect_old_or_new_after_error(int call, int error);

  // How the change ends with this fault.
  static int end_of_change(const TemporaryFolder& folder, Fault fault) {
    fault.without_exchange = GetParam().without_exchange;
    return in_child([&] {
      arm(fault);
      GetParam().change(folder);
    });
  }
};

TEST_P(Crash, AKillAtAnyCallLeavesTheOldOrTheNew) {
  bool through = false;
  std::set<std::string> seen;
  for (int call = 1; !through; ++call) {
    SCOPED_TRACE(fmt::format("killed at call {}", call));
    const TemporaryFolder folder;
    GetParam().before(folder);
    const int status = end_of_change(folder, {.at = call});
    through = WIFEXITED(status);
    if (through) {
      expect_exit_0(status);
    } else {
      EXPECT_EQ(WTERMSIG(status), SIGKILL);
    }
    seen.insert(expect_whole(folder));
    expect_next_run(folder);
    ASSERT_LT(call, 1'000);
  }
  EXPECT_TRUE(seen.contains("old"));
}

// Returns whether there was such a call.
bool Crash::expect_old_or_new_after_error(int call, int error) {
  const TemporaryFolder folder;
  GetParam().before(folder);
  arm({.at = call, .error = error, .without_exchange = GetParam().without_exchange});
  std::string thrown;
  try {
    GetParam().change(folder);
  } catch (const SystemError& caught) {
    thrown = caught.what();
  }
  const Names calls = calls_seen();
  disarm();
  const bool reached = calls.size() >= static_cast<std::size_t>(call);
  const std::string at = reached ? calls.at(static_cast<std::size_t>(call) - 1) : "";
  SCOPED_TRACE(fmt::format("{} at call {}, {}", std::strerror(error), call, at));
  // What cannot be removed stays under a hidden name and goes with the next run.
  const bool removing = at.starts_with("remove");
  EXPECT_TRUE(!thrown.empty() || !reached || removing) << "an error that nobody noticed";
  EXPECT_EQ(thrown.empty(), thrown.find(std::strerror(error)) == std::string::npos) << thrown;
  EXPECT_TRUE(removing || !has_needless(folder)) << testing::PrintToString(folder.names());
  expect_whole(folder);
  if (thrown.empty()) {
    EXPECT_EQ(reached ? visible(folder) : folder.names(), GetParam().after);
  }
  expect_next_run(folder);
  return reached;
}

TEST_P(Crash, AnErrorOfAnyCallLeavesTheOldOrTheNewAndNothingElse) {
  int calls = 0;
  while (expect_old_or_new_after_error(calls + 1, calls % 2 == 0 ? ENOSPC : EIO)) ++calls;
  EXPECT_GT(calls, 5);
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, Crash, testing::ValuesIn(scenarios()),
                         [](const auto& scenario) { return scenario.param.name; });

// The calls of a checkpoint of two files, with "PARENT" for the folder above.
Names calls_of_checkpoint(const TemporaryFolder& folder) {
  CheckpointWriter writer(folder.file("checkpoint_1"));
  arm({});
  writer.write("model.bin", content_from("new"));
  const FileDigest digest =  // as another rank does
      write_checkpoint_file(folder.file("checkpoint_1"), "state.json", content_from("new"));
  writer.commit({{"state.json", digest}});
  Names calls = calls_seen();
  disarm();
  EXPECT_EQ(open_checkpoint(folder.path()).manifest().size(), 2U);
  for (auto& call : calls) {
    const auto parent = fs::path(folder.path()).filename().string();
    const auto at = call.find(parent);
    if (at != std::string::npos) call.replace(at, parent.size(), "PARENT");
  }
  std::erase(calls, "remove .latest.partial");
  return calls;
}

// A power cut loses what was not synchronised, which a killed process does not show. So the order
// itself is held fast: no name before what it leads to. Each file is written once, and flushed
// once.
TEST(CheckpointWriter, SynchronisesEachStepBeforeTheNext) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_0"), "old");
  EXPECT_EQ(calls_of_checkpoint(folder),
            (Names{"create model.bin", "write model.bin", "fsync model.bin",     //
                   "create state.json", "write state.json", "fsync state.json",  //
                   "create manifest.json", "write manifest.json", "fsync manifest.json",
                   "fsync .checkpoint_1.partial", "rename .checkpoint_1.partial checkpoint_1",
                   "fsync PARENT", "symlink checkpoint_1 .latest.partial",
                   "rename .latest.partial latest", "fsync PARENT"}));
}

TEST(CheckpointWriter, RemovesTheReplacedOneWhenTheNewNameIsOnDisk) {
  const TemporaryFolder folder;
  write_checkpoint(folder.file("checkpoint_1"), "old");
  const Names calls = calls_of_checkpoint(folder);
  const auto place_of = [&](std::string_view call) {
    const auto at = std::find(calls.begin(), calls.end(), call);
    EXPECT_NE(at, calls.end()) << call;
    return static_cast<std::size_t>(at - calls.begin());
  };
  const auto exchange = place_of("exchange .checkpoint_1.partial checkpoint_1");
  EXPECT_EQ(calls.at(exchange + 1), "fsync PARENT");
  EXPECT_GT(place_of("remove manifest.json"), exchange + 1);
  EXPECT_GT(place_of("remove model.bin"), exchange + 1);
}

// A reader has opened the old folder, and looks for the manifest in it: that folder is gone; or it
// is still there and whole, but its path leads to another by now; or rotation has removed it, and
// `latest` has moved on; or nothing has taken its place.
TEST(CheckpointFolder, OneThatIsReplacedMeanwhileIsOpenedAnewAndOneThatGoesAwayIsMissed) {
  const TemporaryFolder folder;
  const auto path = folder.file("checkpoint_1");
  write_checkpoint(path, "old");
  before_next_openat([&] { write_checkpoint(path, "new"); });
  EXPECT_EQ(content_of(open_checkpoint(folder.path())), "new");
  before_next_openat([&] {
    fs::rename(path, folder.file("aside"));
    write_checkpoint(path, "newer");
  });
  EXPECT_EQ(content_of(open_checkpoint(folder.path())), "newer");
  before_next_openat([&] {
    write_checkpoint(folder.file("checkpoint_2"), "newest");
    remove_old_checkpoints(folder.path(), "checkpoint_", 1);
  });
  EXPECT_EQ(content_of(open_checkpoint(folder.path())), "newest");
  before_next_openat([&] { fs::remove_all(folder.file("checkpoint_2")); });
  EXPECT_ERROR(open_checkpoint(folder.path()), DataError, "expected a checkpoint, got none");
}

}  // namespace
}  // namespace ladder
