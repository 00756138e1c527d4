// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/child.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <vector>

#include "ladder/core/clock.h"
#include "ladder/core/unique_fd.h"
#include "ladder/io/json.h"
#include "ladder/launch/signals.h"

namespace ladder::bench {
namespace {

constexpr std::chrono::seconds kGrace{40};
constexpr int kNotAvailable = 77;

// Files and variables of a child, in the form of posix_spawn.
class Setting {
 public:
  Setting(const Command& command, const std::filesystem::path& folder) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
    constexpr int kGroupAndMask = POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                  POSIX_SPAWN_SETSIGDEF;  // what SignalGuard changes here
    posix_spawnattr_setflags(&attributes_, kGroupAndMask);
    sigset_t pipe;
    sigset_t none;
    sigemptyset(&none);
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &pipe);
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
    for (const auto& [name, value] : command.environment) {
      texts_.push_back(fmt::format("{}={}", name, value));
    }
    for (auto& text : texts_) variables_.push_back(text.data());
    variables_.push_back(nullptr);
    for (const auto& argument : command.arguments) words_.push_back(argument);
    for (auto& word : words_) arguments_.push_back(word.data());
    arguments_.push_back(nullptr);
  }
  ~Setting() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

  // Returns 0, or the errno of the failed start.
  int start(pid_t& pid) {
    return ::posix_spawnp(&pid, arguments_[0], &actions_, &attributes_, arguments_.data(),
                          variables_.data());
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
  std::vector<std::string> texts_;
  std::vector<std::string> words_;
  std::vector<char*> variables_;
  std::vector<char*> arguments_;
};

enum class Wait { kEnded, kSignal, kTooLong };

Wait wait_for(const UniqueFd& child, const SignalGuard* signals, std::chrono::seconds time,
              const std::function<void()>& each_second) {
  std::array<pollfd, 2> events = {
      pollfd{.fd = child.get(), .events = POLLIN, .revents = 0},
      pollfd{.fd = signals == nullptr ? -1 : signals->fd(), .events = POLLIN, .revents = 0}};
  const double until = steady_seconds() + std::chrono::duration<double>(time).count();
  for (;;) {
    const double left = std::clamp(until - steady_seconds(), 0.0, 1.0);
    const int ready = ::poll(events.data(), events.size(), static_cast<int>(left * 1e3) + 1);
    if (ready > 0) return events[0].revents != 0 ? Wait::kEnded : Wait::kSignal;
    if (steady_seconds() >= until || (ready < 0 && errno != EINTR)) return Wait::kTooLong;
    each_second();
  }
}

// Of any encoding, for a file in JSON: without control characters, in UTF-8.
std::string readable(std::string text) {
  std::ranges::replace_if(text, [](unsigned char sign) { return sign < ' '; }, ' ');
  return nlohmann::json::parse(json_text(nlohmann::json(text)));
}

// The output of a program about its failure: its last line with an error, else its last line.
std::string last_words_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string last;
  bool is_error = false;
  for (std::string line; std::getline(file, line);) {
    const bool error = line.find("rror: ") != std::string::npos;
    if (line.empty() || (is_error && !error)) continue;
    is_error = error;
    last = line;
  }
  return last.empty() ? "no output" : "last line: " + readable(last);
}

std::string failure_of(int status, bool in_time, std::chrono::seconds deadline) {
  if (!in_time) return fmt::format("timed out after {} s", deadline.count());
  if (WIFSIGNALED(status)) return fmt::format("ended by {}", ::strsignal(WTERMSIG(status)));
  if (WEXITSTATUS(status) == 0) return "";
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

}  // namespace

ChildEnd run_child(const Command& command, const std::filesystem::path& folder,
                   std::chrono::seconds deadline, const std::function<void()>& each_second) {
  const SignalGuard signals;
  Setting setting(command, folder);
  ChildEnd end{.started_at = steady_seconds()};
  pid_t pid = 0;
  if (const int error = setting.start(pid); error != 0) {
    end.failure = fmt::format("{}: {}", command.arguments[0], std::strerror(error));
    return end;
  }
  const UniqueFd child(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const auto waited = wait_for(child, &signals, deadline, each_second);
  if (waited != Wait::kEnded) {
    ::kill(-pid, SIGTERM);
    if (wait_for(child, nullptr, kGrace, each_second) != Wait::kEnded) ::kill(-pid, SIGKILL);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  ::kill(-pid, SIGKILL);  // its remaining processes
  if (waited == Wait::kSignal) SignalGuard::reraise(signals.take());
  end.seconds = steady_seconds() - end.started_at;
  end.failure = failure_of(status, waited == Wait::kEnded, deadline);
  if (!end.failure.empty()) end.failure += "; " + last_words_of(folder / "stderr");
  end.available = !WIFEXITED(status) || WEXITSTATUS(status) != kNotAvailable;
  return end;
}

std::string steps_in(const std::filesystem::path& path) {
  static const std::regex kBar(R"(epoch \d+/\d+( \d+/\d+) .*)");
  std::ifstream file(path);
  std::string found;
  std::smatch match;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_match(line, match, kBar)) found = match[1];
  }
  return found;
}

}  // namespace ladder::bench
