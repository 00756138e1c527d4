// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/function_launcher.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/types.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <tuple>

#include "ladder/core/error.h"
#include "tests/support/accelerators.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

// One file with one line per rank.
void note(const TemporaryFolder& folder, const std::string& text) {
  folder.write("rank" + std::string(getenv("RANK")), text);
}

TEST(FunctionLauncher, RunsInAsManyProcessesWithTheArguments) {
  const TemporaryFolder folder;
  const auto train = [&](const std::string& data, double lr, const std::unique_ptr<int>& epochs) {
    note(folder, data + " " + std::to_string(lr) + " " + std::to_string(*epochs));
  };
  for (const int processes : {2, 3}) {  // again and again
    function_launcher(train, std::tuple("data/mnist", 0.5, std::make_unique<int>(processes)),
                      {.num_processes = processes});
    for (int rank = 0; rank < processes; ++rank) {
      EXPECT_EQ(folder.read("rank" + std::to_string(rank)),
                "data/mnist 0.500000 " + std::to_string(processes));
    }
    EXPECT_EQ(static_cast<int>(folder.names().size()), processes);
  }
}

TEST(FunctionLauncher, RunsHereWithOneProcess) {
  int calls = 0;
  function_launcher([&] { ++calls; });
  function_launcher([&](int by) { calls += by; }, std::tuple(10), {.num_processes = 1});
  EXPECT_EQ(calls, 11);
}

TEST(FunctionLauncher, GivesAcceleratorsThatMeet) {
  const TemporaryFolder folder;
  const auto train = [&](int times) {
    const Accelerator accelerator({.cpu = true, .threads = 1, .quiet = true});
    const auto sum = accelerator.reduce(torch::tensor(accelerator.process_index() + 1));
    note(folder, std::to_string(times * sum.item<int>()));
  };
  for (const int times : {1, 2}) {
    function_launcher(train, std::tuple(times), {.num_processes = 2});
    EXPECT_EQ(folder.read("rank0"), std::to_string(3 * times));
    EXPECT_EQ(folder.read("rank1"), std::to_string(3 * times));
  }
}

TEST(FunctionLauncher, PassesFailuresOn) {
  const auto fail = [](const std::string& path) { throw DataError::missing_file(path, "none"); };
  EXPECT_ERROR(function_launcher(fail, std::tuple("x"), {.num_processes = 2}), ChildError, "rank");
  EXPECT_ERROR(function_launcher(fail, std::tuple("x")), DataError, "x");
}

// In a separate process, because it starts LibTorch's threads.
TEST(FunctionLauncher, IsRefusedAfterATensorWasUsed) {
  run_alone([] {
    forget_launcher();
    prepare_process({.requested = 2});
    torch::ones({512, 512}).mm(torch::ones({512, 512}));
    const auto nothing = [] {};
    EXPECT_THROW(function_launcher(nothing, {}, {.num_processes = 2}), UsageError);
    function_launcher(nothing);
  });
}

}  // namespace
}  // namespace ladder
