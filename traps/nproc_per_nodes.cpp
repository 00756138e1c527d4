// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <stdio.h>
#include <sys/wait.h>

#include <array>
#include <filesystem>
#include <optional>
#include <string>

#include "ladder/core/error.h"
#include "ladder/launch/launch_environment.h"
#include "mnist/command_line.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

constexpr const char* kTorchrun = LADDER_SOURCE_DIR "/.venv/bin/torchrun";

struct End {
  int code = 0;
  std::string last_line;
};

End run(const std::string& flags) {
  const auto command = fmt::format("'{}' {} 2>&1", kTorchrun, flags);
  FILE* output = ::popen(command.c_str(), "r");
  require(output != nullptr, "torchrun cannot be started");
  End end;
  std::array<char, 4096> line{};
  while (::fgets(line.data(), line.size(), output) != nullptr) {
    std::string text = line.data();
    text.erase(text.find_last_not_of('\n') + 1);
    if (!text.empty()) end.last_line = text;
  }
  end.code = WEXITSTATUS(::pclose(output));
  return end;
}

}  // namespace

void nproc_per_nodes() {
  require(std::filesystem::exists(kTorchrun), "no torchrun in .venv; hint: tools/setup.sh");
  const auto wrong = run("--standalone --nproc_per_nodes=2 --no-python true");
  const auto right = run("--standalone --nproc_per_node=2 --no-python true");
  require(wrong.code != 0 && right.code == 0, "torchrun accepts the misspelled flag");
  const std::array arguments = {"stage2_ddp_spawn", "--nproc_per_nodes", "2"};
  const auto of_a_stage = error_of<UsageError>(
      [&] { mnist::parse_command_line<mnist::SpawnedOptions>(3, arguments.data()); });
  const auto empty = [](const std::string& /*name*/) { return std::optional<std::string>(); };
  mistake("exit code", std::to_string(wrong.code));
  mistake("error of torchrun", wrong.last_line);
  guard("exit code, correct flag", std::to_string(right.code));
  guard("error of stage 2", of_a_stage);
  guard("error without a launcher", error_of<UsageError>([&] { require_launcher({}, empty); }));
}

}  // namespace ladder::traps
