// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/child.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "ladder/core/descriptor.h"
#include "ladder/core/progress.h"

namespace ladder::bench {
namespace {

constexpr std::chrono::seconds kGrace{10};

// Files and variables of a child, as posix_spawn wants them.
class Setting {
 public:
  Setting(const Command& command, const std::filesystem::path& folder) {
    posix_spawn_file_actions_init(&actions_);
    constexpr int kMode = 0644;
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, (folder / "stdout").c_str(), kFlags,
                                     kMode);
    posix_spawn_file_actions_addopen(&actions_, STDERR_FILENO, (folder / "stderr").c_str(), kFlags,
                                     kMode);
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (!command.environment.contains(text.substr(0, text.find('=')))) texts_.push_back(text);
    }
    for (const auto& [name, value] : command.environment) texts_.push_back(name + '=' + value);
    for (auto& text : texts_) variables_.push_back(text.data());
    variables_.push_back(nullptr);
    for (const auto& argument : command.arguments) words_.push_back(argument);
    for (auto& word : words_) arguments_.push_back(word.data());
    arguments_.push_back(nullptr);
  }
  ~Setting() { posix_spawn_file_actions_destroy(&actions_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

  // Returns 0, or why it did not start.
  int start(pid_t& pid) {
    return ::posix_spawnp(&pid, arguments_[0], &actions_, nullptr, arguments_.data(),
                          variables_.data());
  }

 private:
  posix_spawn_file_actions_t actions_{};
  std::vector<std::string> texts_;
  std::vector<std::string> words_;
  std::vector<char*> variables_;
  std::vector<char*> arguments_;
};

bool ends_within(const Descriptor& child, std::chrono::milliseconds time) {
  pollfd event{.fd = child.get(), .events = POLLIN, .revents = 0};
  const double until = steady_seconds() + std::chrono::duration<double>(time).count();
  for (;;) {
    const double left = std::max(0.0, until - steady_seconds());
    const int ready = ::poll(&event, 1, static_cast<int>(left * 1e3) + 1);
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

std::string last_line_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return last.empty() ? "it said nothing" : last;
}

std::string failure_of(int status, bool in_time, std::chrono::seconds deadline) {
  if (!in_time) return fmt::format("not done after {} s", deadline.count());
  if (WIFSIGNALED(status)) return fmt::format("ended by {}", ::strsignal(WTERMSIG(status)));
  if (WEXITSTATUS(status) == 0) return "";
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

}  // namespace

ChildEnd run_child(const Command& command, const std::filesystem::path& folder,
                   std::chrono::seconds deadline) {
  Setting setting(command, folder);
  ChildEnd end{.started_at = steady_seconds()};
  pid_t pid = 0;
  if (const int error = setting.start(pid); error != 0) {
    end.failure = fmt::format("{}: {}", command.arguments[0], std::strerror(error));
    return end;
  }
  const Descriptor child(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const bool in_time = ends_within(child, deadline);
  if (!in_time) {
    ::kill(pid, SIGTERM);
    if (!ends_within(child, kGrace)) ::kill(pid, SIGKILL);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  end.seconds = steady_seconds() - end.started_at;
  end.failure = failure_of(status, in_time, deadline);
  if (!end.failure.empty()) end.failure += "; its last line: " + last_line_of(folder / "stderr");
  return end;
}

}  // namespace ladder::bench
