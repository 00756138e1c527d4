// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>
#include <string_view>

#include "ladder/core/clock.h"
#include "ladder/core/error.h"
#include "ladder/core/system_limits.h"
#include "ladder/launch/signals.h"

namespace ladder {
namespace {

[[noreturn]] void refuse(std::string_view operation, int rank) {
  const int reason = errno;
  throw SystemError::failed(operation, fmt::format("rank {}", rank), reason,
                            reason == EAGAIN ? hint_for_processes() : "");
}

void become_rank(pid_t parent, int stderr_fd) {
  ::setpgid(0, 0);
  ::signal(SIGTTOU, SIG_IGN);  // `stty tostop` stops background processes that write
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the line above.
  if (::getppid() != parent) ::_exit(exit_code_of_signal(SIGKILL));
  if (stderr_fd != STDERR_FILENO) ::dup2(stderr_fd, STDERR_FILENO);
  const UniqueFd empty(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (empty && empty.get() != STDIN_FILENO) ::dup2(empty.get(), STDIN_FILENO);
}

}  // namespace

RankProcess::~RankProcess() {
  constexpr std::chrono::seconds kForTheKernel{10};
  if (is_running()) {
    send(SIGKILL);
    reap(kForTheKernel);
  }
  if (status_ != nullptr) ::munmap(status_, sizeof *status_);
}

void RankProcess::start(int stderr_fd, const std::function<void()>& body) {
  void* shared = ::mmap(nullptr, sizeof *status_, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  if (shared == MAP_FAILED) refuse("mmap", rank_);
  status_ = new (shared) RankStatus;
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) refuse("fork", rank_);
  if (pid_ == 0) {
    become_rank(parent, stderr_fd);
    set_rank_status(*status_);
    body();
    ::_exit(EXIT_FAILURE);
  }
  ::setpgid(pid_, pid_);  // here and in the child: the first call counts
  ended_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!ended_) refuse("pidfd_open", rank_);
}

void RankProcess::send(int signal) const {
  if (is_running()) ::kill(-pid_, signal);
}

bool RankProcess::reap(std::chrono::milliseconds limit) {
  pollfd ended{ended_.get(), POLLIN, 0};
  if (ended_ && limit.count() > 0) ::poll(&ended, 1, static_cast<int>(limit.count()));
  siginfo_t info{};
  const auto id = static_cast<id_t>(pid_);
  const int without_waiting = ended_ ? WNOHANG : 0;
  if (::waitid(P_PID, id, &info, WEXITED | WNOWAIT | without_waiting) != 0 || info.si_pid == 0) {
    return false;
  }
  send(SIGKILL);  // to its group, whose number stays taken until the next line reaps the rank
  ::waitid(P_PID, id, &info, WEXITED);
  (info.si_code == CLD_EXITED ? exit_code_ : signal_) = info.si_status;
  pid_ = -1;
  ended_.reset();
  return true;
}

std::string RankProcess::saving() const {
  return status_ != nullptr && status_->saving_since != 0 ? status_->saving.data() : "";
}

bool RankProcess::saves(std::chrono::milliseconds longest) const {
  if (!is_running() || saving().empty() || state() == 'T') return false;
  return steady_milliseconds() - status_->saving_since.load() <= longest.count();
}

char RankProcess::state() const {
  std::ifstream file(fmt::format("/proc/{}/stat", pid_));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto name_end = text.rfind(") ");  // "12 (a name) S 1 ..."
  return name_end == std::string::npos || name_end + 2 >= text.size() ? '?' : text[name_end + 2];
}

}  // namespace ladder
