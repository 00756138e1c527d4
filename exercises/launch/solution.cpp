// SPDX-License-Identifier: Apache-2.0
// Exercise 5: start ranks, pass on the first failure, and resume.
#include "exercises/launch/launch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using namespace ladder::exercises;

// Runs `run(rank)` in `world_size` processes at once.
int launch(int world_size, int port, const std::function<int(int rank)>& run) {
  // solution
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), /*overwrite=*/1);
  };
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (const auto* name : {"RANK", "LOCAL_RANK"}) set(name, std::to_string(rank));
      for (const auto* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
        set(name, std::to_string(world_size));
      }
      set("MASTER_ADDR", "127.0.0.1");
      set("MASTER_PORT", std::to_string(port));
      ::_exit(run(rank));
    }
    ranks.push_back(pid);
  }
  int failure = 0;
  while (!ranks.empty()) {
    int status = 0;
    std::erase(ranks, ::wait(&status));
    const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (code == 0 || failure != 0) continue;
    failure = code;
    for (const pid_t pid : ranks) ::kill(pid, SIGKILL);
  }
  return failure;
  // end
}

// Trains up to `steps` steps, with a snapshot every `save_every` steps and at the end.
void train(std::int64_t steps, std::int64_t save_every, const Resumable& training) {
  // solution
  for (auto step = training.load().value_or(0); step < steps; ++step) {
    training.run_step(step);
    const auto finished = step + 1;
    if (finished % save_every == 0 || finished == steps) training.save(finished);
  }
  // end
}

const Submission submission(Launch{launch, train});

}  // namespace
