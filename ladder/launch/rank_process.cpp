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

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>
#include <string>

#include "ladder/core/current_step.h"
#include "ladder/core/error.h"
#include "ladder/core/stopped_by_signal.h"

namespace ladder {
namespace {

[[noreturn]] void refuse(std::string_view operation, int rank) {
  const int reason = errno;
  const bool too_many = reason == EAGAIN || reason == EMFILE || reason == ENFILE;
  throw SystemError::failed(
      operation, fmt::format("rank {}", rank), reason,
      too_many ? "lower nprocs, or raise the limits: ulimit -u, ulimit -n" : "");
}

void replace_stream(int stream, int fd) {
  if (fd != stream) ::dup2(fd, stream);
}

void empty_standard_input() {
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (nothing) replace_stream(STDIN_FILENO, nothing.get());
}

}  // namespace

RankProcess::~RankProcess() {
  constexpr std::chrono::seconds kForTheKernel{10};
  if (is_running()) {
    send(SIGKILL);
    reap(kForTheKernel);
  }
  if (step_ != nullptr) ::munmap(step_, sizeof *step_);
}

void RankProcess::start(int errors, const std::function<void()>& body) {
  UniqueFd write_end;
  if (errors < 0) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) refuse("pipe2", rank_);
    errors_.reset(ends[0]);
    write_end.reset(ends[1]);
    ::fcntl(errors_.get(), F_SETFL, O_NONBLOCK);
  }
  void* shared = ::mmap(nullptr, sizeof *step_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                        /*fd=*/-1, /*offset=*/0);
  if (shared == MAP_FAILED) refuse("mmap", rank_);
  step_ = new (shared) std::atomic<std::int64_t>(0);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) refuse("fork", rank_);
  if (pid_ == 0) {
    replace_stream(STDERR_FILENO, errors < 0 ? write_end.get() : errors);
    write_end.reset();
    become_rank(parent, body);
  }
  ::setpgid(pid_, pid_);  // here and in the child: whoever comes first
  ended_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!ended_) refuse("pidfd_open", rank_);
}

void RankProcess::become_rank(pid_t parent, const std::function<void()>& body) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have died before the line above.
  if (::getppid() != parent) ::_exit(exit_code_of_signal(SIGKILL));
  errors_.reset();
  empty_standard_input();
  keep_current_step_at(*step_);
  body();
  ::_exit(EXIT_FAILURE);
}

void RankProcess::send(int signal) const {
  if (is_running()) ::kill(-pid_, signal);
}

bool RankProcess::reap(std::chrono::milliseconds limit) {
  pollfd ended{ended_.get(), POLLIN, 0};
  if (ended_ && limit.count() > 0) ::poll(&ended, 1, static_cast<int>(limit.count()));
  siginfo_t info{};
  const auto id = static_cast<id_t>(pid_);
  const int at_once = ended_ ? WNOHANG : 0;
  if (::waitid(P_PID, id, &info, WEXITED | WNOWAIT | at_once) != 0 || info.si_pid == 0)
    return false;
  send(SIGKILL);  // to its group; its number is still taken, by the rank that nobody has reaped
  ::waitid(P_PID, id, &info, WEXITED);
  (info.si_code == CLD_EXITED ? exit_code_ : signal_) = info.si_status;
  pid_ = -1;
  ended_.reset();
  return true;
}

char RankProcess::state() const {
  std::ifstream file(fmt::format("/proc/{}/stat", pid_));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto name_end = text.rfind(") ");  // "12 (a name) S 1 ..."
  return name_end == std::string::npos || name_end + 2 >= text.size() ? '?' : text[name_end + 2];
}

std::int64_t RankProcess::step() const {
  return step_ == nullptr ? 0 : step_->load(std::memory_order_relaxed);
}

void RankProcess::close_descriptors() {
  ended_.reset();
  errors_.reset();
}

}  // namespace ladder
