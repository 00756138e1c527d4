// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/core/unique_fd.h"
#include "ladder/launch/exit_status.h"
#include "ladder/launch/failure_kind.h"
#include "ladder/launch/listening_socket.h"
#include "ladder/launch/rank_status.h"
#include "tests/support/captured_stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/sockets.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kDeadline = 20'000;  // milliseconds; more is a hang
constexpr milliseconds kLongGrace{60'000};

// Carries text between processes and the test, and lets them wait for each other.
class Pipe {
 public:
  Pipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    read_end_.reset(ends[0]);
    write_end_.reset(ends[1]);
  }

  void put(const std::string& text) const {
    if (write(write_end_.get(), text.data(), text.size()) < 0) throw std::runtime_error("write");
  }
  // So that the other processes' ends are the only ones.
  void close_write_end() { write_end_.reset(); }
  void close_read_end() { read_end_.reset(); }
  int write_end() const { return write_end_.get(); }

  // The next `count` bytes; fewer if all writers have gone.
  std::string get(std::size_t count) const {
    std::string text;
    while (text.size() < count) {
      char c = 0;
      pollfd ready{read_end_.get(), POLLIN, 0};
      if (poll(&ready, 1, kDeadline) <= 0) throw std::runtime_error("nothing to read in time");
      if (read(read_end_.get(), &c, 1) <= 0) break;
      text += c;
    }
    return text;
  }
  std::string all() {
    close_write_end();
    return get(std::string::npos);
  }

 private:
  UniqueFd read_end_;
  UniqueFd write_end_;
};

// A process that runs `body` and ends: the parent of ranks that may be killed without harm.
class Process {
 public:
  explicit Process(const std::function<void()>& body) : pid_(fork()) {
    if (pid_ != 0) return;
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      _exit(99);
    }
    _exit(0);
  }
  ~Process() {
    if (!waited_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const { kill(pid_, signal); }
  bool goes_on_for(int time) const {
    const UniqueFd ended(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
    pollfd ready{ended.get(), POLLIN, 0};
    return poll(&ready, 1, time) == 0;
  }
  // "exit 3" or "signal 9".
  std::string end() {
    const UniqueFd ended(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
    pollfd ready{ended.get(), POLLIN, 0};
    if (poll(&ready, 1, kDeadline) <= 0) return "still running";
    int status = 0;
    waitpid(pid_, &status, 0);
    waited_ = true;
    return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                               : "exit " + std::to_string(WEXITSTATUS(status));
  }

 private:
  pid_t pid_;
  bool waited_ = false;
};

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "-" : value;
}

[[noreturn]] void wait_forever() {
  while (true) pause();
}

void ignore(int signal) { std::signal(signal, SIG_IGN); }

// Until `done` or the deadline, without a guess about how long it takes.
void wait_until(const std::function<bool()>& done) {
  const auto start = Clock::now();
  while (!done() && Clock::now() - start < milliseconds(kDeadline)) poll(nullptr, 0, 1);
}

// The parent has taken note of its end.
bool is_reaped(pid_t pid) { return kill(pid, 0) != 0 && errno == ESRCH; }

char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string number;
  std::string name;
  char state = '?';
  file >> number >> name >> state;
  return state;
}

DistributedError lost_peer() { return peer_lost("Connection closed by peer"); }

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

class Spawn : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
      unsetenv(name);
    }
  }
  // A test that leaves a child behind fails, whatever else it looks at.
  void TearDown() override {
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }

  SpawnOptions options(int nprocs, milliseconds grace = kLongGrace) const {
    return {.nprocs = nprocs, .grace = grace, .stderr_fd = fileno(messages_.get())};
  }
  // A parent of ranks that run `fn`.
  static Process parent(const std::function<void(int)>& fn, const SpawnOptions& options) {
    return Process([&] { spawn(fn, options); });
  }

  void put_pid() const { pipe_.put(fmt::format("{:10}", getpid())); }
  pid_t get_pid() const { return std::stoi(pipe_.get(10)); }

  // Lets a rank write `letter` into the pipe at `signal`; then it ends or goes on.
  void answer(int signal, char letter, bool ends) const {
    static int output = -1;
    static char answer = ' ';
    output = pipe_.write_end();
    answer = letter;
    std::signal(
        signal, ends ? [](int) { _exit(write(output, &answer, 1) == 1 ? 0 : 1); }
                     : [](int) { static_cast<void>(!write(output, &answer, 1)); });
  }

  CapturedStream messages_;
  Pipe pipe_;
};

TEST_F(Spawn, SetsRankAndWorldSizeOfEachRank) {
  setenv("LADDER_LISTEN_FD", "77", 1);
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
  spawn(
      [&](int rank) {
        pipe_.put(std::to_string(rank) + " " + variable("RANK") + " " + variable("LOCAL_RANK") +
                  " " + variable("WORLD_SIZE") + " " + variable("LOCAL_WORLD_SIZE") + " " +
                  variable("MASTER_ADDR") + (variable("LADDER_LISTEN_FD") == "-" ? "" : " fd") +
                  (variable("TORCHELASTIC_USE_AGENT_STORE") == "-" &&
                           variable("TORCHELASTIC_RESTART_COUNT") == "-"
                       ? ""
                       : " torchrun's") +
                  "\n");
      },
      options(3));
  for (const char* name :
       {"LADDER_LISTEN_FD", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"}) {
    unsetenv(name);
  }
  EXPECT_EQ(lines_of(pipe_.all()),
            (std::set<std::string>{"0 0 0 3 3 127.0.0.1 fd", "1 1 1 3 3 127.0.0.1",
                                   "2 2 2 3 3 127.0.0.1"}));
  EXPECT_EQ(variable("RANK"), "-") << "the environment of the caller";
  EXPECT_EQ(variable("MASTER_PORT"), "-");
}

TEST_F(Spawn, LetsRankZeroListenBeforeAnyRankRuns) {
  const auto meet = [&](int rank) {
    if (rank == 1) return pipe_.put(std::to_string(connect_to(std::stoi(variable("MASTER_PORT")))));
    pollfd ready{std::stoi(variable("LADDER_LISTEN_FD")), POLLIN, 0};
    if (poll(&ready, 1, kDeadline) <= 0) throw std::runtime_error("no connection in time");
  };
  spawn(meet, options(2));
  EXPECT_EQ(pipe_.all(), "0");
}

TEST_F(Spawn, GivesThePortToRankZeroAlone) {
  const int port = ListeningSocket().port();
  auto with_port = options(2);
  with_port.master_port = port;
  spawn(
      [&](int rank) {
        if (rank == 0) {
          close(std::stoi(variable("LADDER_LISTEN_FD")));
          pipe_.put("closed");
          return;
        }
        pipe_.get(6);
        wait_until([&] {  // the parent closes its own when all ranks are started
          try {
            return ListeningSocket(port).port() == port;
          } catch (const DistributedError&) {
            return false;
          }
        });
        if (ListeningSocket(port).port() != port) throw std::runtime_error("port still held");
      },
      with_port);
}

// The kernel ends a rank before its launcher, which is left to report that memory ran out.
TEST_F(Spawn, StartsRanksWithFreshSignalsNoInputAndMoreLikelyToEndWhenMemoryRunsOut) {
  const auto score = [] {
    int value = 0;
    std::ifstream("/proc/self/oom_score_adj") >> value;
    return value;
  };
  std::signal(SIGUSR1, [](int) {});
  ignore(SIGUSR2);
  spawn(
      [&](int) {
        sigset_t blocked;
        sigprocmask(SIG_SETMASK, nullptr, &blocked);
        const auto is = [](int signal, void (*handler)(int)) {
          struct sigaction action{};
          sigaction(signal, nullptr, &action);
          return action.sa_handler == handler;
        };
        char c = 0;
        pipe_.put(sigisemptyset(&blocked) != 0 ? "none blocked, " : "some blocked, ");
        pipe_.put(is(SIGUSR1, SIG_DFL) ? "default, " : "handler, ");
        pipe_.put(is(SIGUSR2, SIG_IGN) && is(SIGPIPE, SIG_IGN) ? "ignored, " : "not ignored, ");
        pipe_.put(getpgrp() == getpid() ? "own group, " : "other group, ");
        pipe_.put(read(STDIN_FILENO, &c, 1) == 0 ? "no input, " : "input, ");
        pipe_.put(std::to_string(score()));
      },
      options(1));
  std::signal(SIGUSR1, SIG_DFL);
  std::signal(SIGUSR2, SIG_DFL);
  EXPECT_EQ(pipe_.all(), "none blocked, default, ignored, own group, no input, 1000");
}

TEST_F(Spawn, TestsTheLimitsOfAllRanksFirst) {
  Process process([&] {
    const CapturedStream errors;
    const rlimit limit{64 << 10, 64 << 10};
    setrlimit(RLIMIT_STACK, &limit);
    call_and_report([&] { spawn([&](int) { pipe_.put("a rank "); }, options(2)); }, errors.get());
    pipe_.put(errors.text());
    _exit(0);
  });
  EXPECT_EQ(process.end(), "exit 0");
  EXPECT_NE(pipe_.all().find("error: spawn: use 256 KiB of stack: "), std::string::npos);
}

TEST_F(Spawn, RestoresTheSignalsOfTheCaller) {
  spawn([](int) {}, options(1));
  struct sigaction action{};
  sigaction(SIGPIPE, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
  sigset_t blocked;
  sigprocmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGTERM), 0);
}

TEST_F(Spawn, WorksForACallerThatIgnoresItsChildren) {
  ignore(SIGCHLD);
  EXPECT_ERROR(spawn([](int) { throw DataError::missing_file("a", "b"); }, options(1)), ChildError,
               "rank 0: expected exit code 0, got 3");
  std::signal(SIGCHLD, SIG_DFL);
}

TEST_F(Spawn, WritesBufferedTextOnce) {
  Process process([&] {
    dup2(pipe_.write_end(), STDOUT_FILENO);
    std::printf("before ");
    spawn([](int rank) { std::printf("rank %d ", rank); }, options(1));
    std::printf("after");
    std::fflush(stdout);
  });
  EXPECT_EQ(process.end(), "exit 0");
  EXPECT_EQ(pipe_.all(), "before rank 0 after");
}

// --- how ranks end ---

struct Ending {
  std::function<void()> act;  // of the last rank; others wait for ever
  int nprocs;
  ExitCode code;
  std::string error;
};

const Ending kEndings[] = {
    {[] { throw DataError::missing_file("data/x.gz", "pass --data-root"); }, 2, ExitCode::kData,
     "rank 1: expected exit code 0, got 3; its last line: \"[rank 1] error: data/x.gz: expected a "
     "readable file, got none; hint: pass --data-root\""},
    {[] { throw std::runtime_error(std::string(500, 'x')); }, 1, ExitCode::kRuntime,
     "got 1; its last line: \"error: " + std::string(293, 'x') + "...\""},
    {[] { throw lost_peer(); }, 1, ExitCode::kDistributed,
     "rank 0: expected exit code 0, got 4; its last line: \"error: collective: "},
    {[] {
       set_current_step(8);
       _exit(7);
     },
     1, static_cast<ExitCode>(7), "rank 0, step 8: expected exit code 0, got 7"},
    {[] {
       set_current_step(8);
       raise(SIGKILL);
     },
     2, ExitCode::kDistributed,
     "rank 1, step 8: expected exit code 0, got signal 9 (Killed); hint: see whether memory ran"},
    {[] {
       const rlimit no_core{0, 0};
       setrlimit(RLIMIT_CORE, &no_core);
       raise(SIGSEGV);
     },
     1, ExitCode::kDistributed,
     "got signal 11 (Segmentation fault); hint: run again after: ulimit -c unlimited"},
    {[] { raise(SIGXCPU); }, 1, ExitCode::kDistributed,
     "got signal 24 (CPU time limit exceeded); hint: the limit of CPU time"},
    {[] { raise(SIGTERM); }, 2, ExitCode::kDistributed,
     "rank 1: expected exit code 0, got signal 15"},
};

TEST_F(Spawn, ThrowsTheExitCodeOrTheSignalOfTheRankThatEndedFirst) {
  for (const auto& ending : kEndings) {
    SCOPED_TRACE(ending.error);
    const auto fn = [&](int rank) { rank + 1 == ending.nprocs ? ending.act() : wait_forever(); };
    try {
      spawn(fn, options(ending.nprocs));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ending.code);
      EXPECT_NE(std::string(error.what()).find(ending.error), std::string::npos) << error.what();
    }
  }
}

TEST_F(Spawn, QuotesTheFirstLineOfALongError) {
  setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
  const auto fail = [](int) { throw std::runtime_error("shape mismatch\nframe #0: somewhere"); };
  EXPECT_ERROR(spawn(fail, options(1)), ChildError,
               "got 1; its last line: \"error: shape mismatch\"");
  EXPECT_EQ(messages_.text(), "error: shape mismatch\nframe #0: somewhere\n");
  unsetenv("TORCH_SHOW_CPP_STACKTRACES");
}

TEST_F(Spawn, WaitsForTheCauseBehindALostPeer) {
  const auto fn = [&](int rank) {
    if (rank == 2) wait_forever();
    if (rank == 0) {
      put_pid();
      throw lost_peer();
    }
    const auto lost = get_pid();
    wait_until([&] { return is_reaped(lost); });
    throw DataError::missing_file("a", "b");
  };
  const auto start = Clock::now();
  EXPECT_ERROR(spawn(fn, options(3)), ChildError, "rank 1: expected exit code 0, got 3");
  EXPECT_LT(Clock::now() - start, milliseconds(kDeadline));
}

TEST_F(Spawn, NamesARankThatHangsAndHadToBeKilled) {
  const std::pair<bool, const char*> cases[] = {
      {true, "; hint: rank 1 hung; when it hangs again, see where: gdb -p <process id>"},
      {false, "; hint: rank 1 ignored SIGTERM and had to be killed"}};
  for (const auto& [is_lost_peer, hint] : cases) {
    const auto fn = [&, lost = is_lost_peer](int rank) {
      if (rank == 0) {
        pipe_.get(1);
        if (lost) throw lost_peer();
        throw DataError::missing_file("a", "b");
      }
      ignore(SIGTERM);
      pipe_.put("i");
      wait_forever();
    };
    const auto start = Clock::now();
    EXPECT_ERROR(spawn(fn, options(2, milliseconds(200))), ChildError, hint);
    EXPECT_GE(Clock::now() - start, milliseconds(is_lost_peer ? 400 : 200));
    EXPECT_LT(Clock::now() - start, milliseconds(kDeadline));
  }
}

TEST_F(Spawn, NamesARankThatIsStoppedAndLetsItEndByItself) {
  const auto stop_rank_1 = [&](int rank, bool answers) {
    if (rank == 1) {
      if (answers) answer(SIGTERM, 'b', /*ends=*/true);
      put_pid();
      raise(SIGSTOP);
      wait_forever();
    }
    const auto stopped = get_pid();
    wait_until([&] { return state_of(stopped) == 'T'; });
    if (answers) throw DataError::missing_file("a", "b");
    throw lost_peer();
  };
  EXPECT_ERROR(spawn([&](int rank) { stop_rank_1(rank, false); }, options(2, milliseconds(200))),
               ChildError, "; hint: rank 1 (stopped) hung;");
  EXPECT_ERROR(spawn([&](int rank) { stop_rank_1(rank, true); }, options(2)), ChildError,
               "rank 0: expected exit code 0, got 3");
  EXPECT_EQ(pipe_.all(), "b");
}

TEST_F(Spawn, KillsProcessesThatARankStarted) {
  spawn(
      [&](int) {
        if (fork() == 0) wait_forever();
      },
      options(1));
  EXPECT_EQ(pipe_.all(), "");  // the end of the pipe: no process has it open
}

// --- messages ---

TEST_F(Spawn, LinesOfRanksDoNotMix) {
  const TemporaryFolder folder;
  const UniqueFd file(open(folder.file("all").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  constexpr int kLines = 300;
  const auto log_lines = [](int rank) {
    const std::string line(2000, static_cast<char>('a' + rank));
    for (int i = 0; i < kLines; ++i) Log().warn(line);
  };
  spawn(log_lines, {.nprocs = 3, .stderr_fd = file.get()});
  std::istringstream text(folder.read("all"));
  int count = 0;
  for (std::string line; std::getline(text, line); ++count) {
    ASSERT_EQ(line, "warning: " + std::string(2000, line.back())) << "line " << count;
  }
  EXPECT_EQ(count, 3 * kLines);
}

TEST_F(Spawn, RanksShareTheTerminal) {
  const UniqueFd controller(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(controller);
  ASSERT_EQ(grantpt(controller.get()) | unlockpt(controller.get()), 0);
  const UniqueFd terminal(open(ptsname(controller.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal);
  spawn([&](int) { pipe_.put(isatty(STDERR_FILENO) != 0 ? "t" : "p"); },
        {.nprocs = 2, .stderr_fd = terminal.get()});
  EXPECT_EQ(pipe_.all(), "tt");
}

TEST_F(Spawn, ALineWithoutAReaderEndsNoRank) {
  Pipe closed;
  closed.close_read_end();
  const auto log_line = [&](int) {
    Log().warn("hello");
    pipe_.put("r");
  };
  spawn(log_line, {.nprocs = 2, .stderr_fd = closed.write_end()});
  EXPECT_EQ(pipe_.all(), "rr");
}

TEST_F(Spawn, CanBeEndedWhileItsReaderIsBusy) {
  Pipe busy;  // holds 64 KiB and is never read
  Process process([&] {
    spawn(
        [&](int) {
          const std::string line(1000, 'x');
          for (int i = 0; i < 1000; ++i) std::fputs((line + "\n").c_str(), stderr);
        },
        {.nprocs = 2, .stderr_fd = busy.write_end()});
  });
  wait_until([&] {  // it is full
    pollfd sink{busy.write_end(), POLLOUT, 0};
    return poll(&sink, 1, 0) == 0;
  });
  process.send(SIGTERM);
  EXPECT_EQ(process.end(), "signal 15");
}

// --- signals to the parent ---

class SpawnSignal : public Spawn, public testing::WithParamInterface<int> {};

TEST_P(SpawnSignal, ReachesTheRanksAndEndsTheParent) {
  Pipe ready;
  const auto wait_for_signal = [&](int) {
    answer(GetParam(), 's', /*ends=*/true);
    ready.put("r");
    wait_forever();
  };
  auto process = parent(wait_for_signal, options(2));
  EXPECT_EQ(ready.get(2), "rr");
  process.send(GetParam());
  EXPECT_EQ(process.end(), "signal " + std::to_string(GetParam()));
  EXPECT_EQ(pipe_.all(), "ss");
}

INSTANTIATE_TEST_SUITE_P(Each, SpawnSignal,
                         testing::Values(SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT));

// As Ctrl-Z and fg do.
TEST_F(Spawn, StopsItsRanksWithItselfAndLetsThemGoOn) {
  const auto wait = [&](int) {
    put_pid();
    wait_forever();
  };
  auto process = parent(wait, options(1));
  const auto rank = get_pid();
  const auto is_stopped = [&] { return state_of(rank) == 'T'; };
  process.send(SIGTSTP);
  wait_until(is_stopped);
  EXPECT_TRUE(is_stopped());
  process.send(SIGCONT);
  wait_until([&] { return !is_stopped(); });
  EXPECT_FALSE(is_stopped());
  process.send(SIGTERM);
  EXPECT_EQ(process.end(), "signal 15");
}

// The time between Ctrl-Z and fg ends a rank's wait for another.
TEST_F(Spawn, NamesALongStopAsACauseOfATimeout) {
  const CapturedStream errors;
  const auto time_out = [&](int) {
    const auto begun = Clock::now();
    put_pid();
    wait_until([&] { return Clock::now() - begun > milliseconds(1500); });
    throw DistributedError::of("all_reduce", "", "timed out", "");
  };
  Process process(
      [&] { _exit(call_and_report([&] { spawn(time_out, options(1)); }, errors.get())); });
  const auto rank = get_pid();
  process.send(SIGTSTP);
  wait_until([&] { return state_of(rank) == 'T'; });
  std::this_thread::sleep_for(milliseconds(1600));
  process.send(SIGCONT);
  EXPECT_EQ(process.end(), "exit 4");
  EXPECT_NE(errors.text().find("; hint: the run was stopped for 2 s (Ctrl-Z): its timeout counts"),
            std::string::npos);
}

TEST_F(Spawn, KillsRanksThatSurviveTheGrace) {
  const auto survive = [&](int) {
    ignore(SIGINT);
    pipe_.put("r");
    wait_forever();
  };
  auto process = parent(survive, options(2, milliseconds(100)));
  EXPECT_EQ(pipe_.get(2), "rr");
  process.send(SIGINT);
  EXPECT_EQ(process.end(), "signal 2");
  EXPECT_EQ(pipe_.all(), "");
}

TEST_F(Spawn, KillsAtOnceAtASecondSignal) {
  const auto survive = [&](int) {
    answer(SIGTERM, 's', /*ends=*/false);
    pipe_.put("r");
    wait_forever();
  };
  auto process = parent(survive, options(1, kLongGrace));
  EXPECT_EQ(pipe_.get(1), "r");
  process.send(SIGTERM);
  EXPECT_EQ(pipe_.get(1), "s");
  process.send(SIGTERM);  // an echo of the first: a launcher passes on what all have got
  EXPECT_TRUE(process.goes_on_for(600));
  process.send(SIGTERM);  // the rank would survive this one too
  EXPECT_EQ(process.end(), "signal 15");
}

void save_for(milliseconds time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end) poll(nullptr, 0, 20);  // a signal ends one of them early
}

TEST_F(Spawn, LetsARankFinishItsCheckpoint) {
  const auto save = [&](int) {
    ignore(SIGTERM);
    const SavingMark saving("out/checkpoint-5");
    pipe_.put("r");
    save_for(milliseconds(600));
    pipe_.put("saved");
  };
  auto process = parent(save, options(1, milliseconds(100)));
  EXPECT_EQ(pipe_.get(1), "r");
  process.send(SIGTERM);
  EXPECT_EQ(process.end(), "signal 15");
  EXPECT_EQ(pipe_.all(), "saved");
}

TEST_F(Spawn, ReportsACheckpointThatIsLost) {
  for (const bool is_stuck : {true, false}) {  // or ended by a second signal
    SCOPED_TRACE(is_stuck);
    const CapturedStream errors;
    Pipe ready;
    Process process([&] {
      dup2(fileno(errors.get()), STDERR_FILENO);
      auto with_timeout = options(2, milliseconds(100));
      if (is_stuck) with_timeout.save_timeout = milliseconds(300);
      spawn(
          [&](int rank) {
            ignore(SIGTERM);
            const SavingMark saving("out/checkpoint-5");
            ready.put(std::to_string(rank));
            wait_forever();
          },
          with_timeout);
    });
    EXPECT_EQ(lines_of(ready.get(1) + "\n" + ready.get(1)), (std::set<std::string>{"0", "1"}));
    process.send(SIGTERM);
    EXPECT_EQ(process.goes_on_for(700), !is_stuck);
    if (!is_stuck) process.send(SIGTERM);
    EXPECT_EQ(process.end(), "signal 15");
    EXPECT_EQ(errors.text(),
              "warning: not saved: out/checkpoint-5; its ranks were killed meanwhile, older "
              "checkpoints stay\n");
  }
}

TEST_F(Spawn, WaitsForTheCauseWhileARankSaves) {
  const auto fn = [&](int rank) {
    if (rank == 0) {
      pipe_.get(1);
      throw lost_peer();
    }
    {
      const SavingMark saving("out/checkpoint-5");
      pipe_.put("i");
      save_for(milliseconds(600));
    }
    save_for(milliseconds(500));  // over the second deadline: it has just saved
    throw DataError::missing_file("a", "b");
  };
  EXPECT_ERROR(spawn(fn, options(2, milliseconds(500))), ChildError,
               "rank 1: expected exit code 0, got 3");
}

TEST_F(Spawn, LeavesIgnoredSignalsIgnored) {
  Pipe go_on;
  const auto wait = [&](int) {
    pipe_.put("r");
    go_on.get(1);
  };
  Process process([&] {
    ignore(SIGHUP);
    spawn(wait, options(1));
  });
  EXPECT_EQ(pipe_.get(1), "r");
  process.send(SIGHUP);
  go_on.put("g");
  EXPECT_EQ(process.end(), "exit 0");
}

TEST_F(Spawn, LeavesNoRankIfTheParentIsKilled) {
  const auto wait = [&](int) {
    pipe_.put("r");
    wait_forever();
  };
  auto process = parent(wait, options(2));
  EXPECT_EQ(pipe_.get(2), "rr");
  process.send(SIGKILL);
  EXPECT_EQ(process.end(), "signal 9");
  EXPECT_EQ(pipe_.all(), "");  // the end of the pipe: no rank has it open
}

// --- leaks and refused calls ---

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST_F(Spawn, LeavesNothingOpenAfterAHundredCalls) {
  const auto before = open_descriptors();
  for (int i = 0; i < 50; ++i) {
    spawn([&](int) { pipe_.put("r"); }, options(2));
    EXPECT_ERROR(spawn([](int) { raise(SIGKILL); }, options(1)), DistributedError, "signal 9");
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(pipe_.all().size(), 100U);
}

TEST_F(Spawn, GivesRanksNoDescriptorsOfOtherRanks) {
  const auto before = open_descriptors();
  spawn([&](int) { pipe_.put(std::to_string(open_descriptors()) + "\n"); }, options(4));
  EXPECT_EQ(lines_of(pipe_.all()),
            (std::set<std::string>{std::to_string(before), std::to_string(before + 1)}));
}

TEST_F(Spawn, EndsTheFirstRanksIfALaterOneCannotStart) {
  const auto before = open_descriptors();
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit low{static_cast<rlim_t>(before) + 12, limit.rlim_max};
  setrlimit(RLIMIT_NOFILE, &low);
  EXPECT_ERROR(spawn([](int) { wait_forever(); }, options(30)), SystemError,
               "Too many open files; hint: this process may open ");
  setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(Spawn, RefusesOptionsThatCannotBe) {
  const auto spawn_with = [](const SpawnOptions& options) { spawn([](int) {}, options); };
  EXPECT_ERROR(spawn_with(options(0)), UsageError, "nprocs: expected 1 to 256, got 0");
  EXPECT_ERROR(spawn_with(options(257)), UsageError, "got 257");
  EXPECT_ERROR(spawn_with(options(1, milliseconds(-1))), UsageError,
               "grace: expected 0 milliseconds or more, got -1");
  const ListeningSocket holder;
  auto with_port = options(2);
  with_port.master_port = holder.port();
  EXPECT_ERROR(spawn_with(with_port), DistributedError, "expected a free port, got 'Addr");
}

TEST_F(Spawn, RefusesInsideARankAndWithASecondThread) {
  EXPECT_ERROR(spawn([&](int) { spawn([](int) {}, options(2)); }, options(1)), ChildError,
               "rank 0: expected exit code 0, got 2; its last line: \"error: spawn: RANK is 0: a "
               "launcher has already started the ranks");
  Pipe end_thread;
  std::thread thread([&] { end_thread.get(1); });
  EXPECT_ERROR(spawn([](int) {}, options(1)), UsageError, "this process has 2 threads");
  end_thread.put("e");
  thread.join();
  EXPECT_NO_THROW(spawn([](int) {}, options(1)));
}

// A folder like /proc/self: a process with these threads and open files.
class RequireForkable : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* folder : {"task/100", "fd"}) {
      std::filesystem::create_directories(process_.file(folder));
    }
    open_file("0", "/dev/null");
  }
  void open_file(const std::string& fd, const std::string& target) {
    std::filesystem::create_symlink(target, process_.file("fd/" + fd));
  }

  TemporaryFolder process_;
};

TEST_F(RequireForkable, AllowsAProcessWhoseThreadHasJustBeenJoined) {
  for (int i = 0; i < 200; ++i) {
    std::thread([] {}).join();
    EXPECT_NO_THROW(require_forkable());
  }
}

TEST_F(RequireForkable, RefusesASecondThread) {
  std::filesystem::create_directory(process_.file("task/101"));
  EXPECT_ERROR(require_forkable(process_.path()), UsageError,
               "spawn: this process has 2 threads, of which a rank would have one; hint: call "
               "spawn first thing in main: before any tensor operation");
}

TEST_F(RequireForkable, RefusesAnOpenGpu) {
  open_file("5", "/dev/nvidia-uvm");
  EXPECT_ERROR(require_forkable(process_.path()), UsageError,
               "spawn: this process has already opened /dev/nvidia-uvm; hint: ");
}

TEST_F(RequireForkable, AllowsOneThreadWithoutAGpu) {
  open_file("5", "/home/me/dev/nvidia0");  // only named like a GPU
  EXPECT_NO_THROW(require_forkable(process_.path()));
  EXPECT_NO_THROW(require_forkable(process_.file("not-mounted")));
}

TEST(RequireNotLaunched, NamesTheVariableAndTheLauncher) {
  const std::pair<const char*, const char*> cases[] = {{"RANK", "torchrun"},
                                                       {"WORLD_SIZE", "torchrun"},
                                                       {"OMPI_COMM_WORLD_RANK", "mpirun"},
                                                       {"PMI_RANK", "mpirun"}};
  for (const auto& [name, launcher] : cases) {
    EXPECT_NO_THROW(require_not_launched());
    setenv(name, "3", 1);
    EXPECT_ERROR(require_not_launched(), UsageError,
                 std::string("spawn: ") + name + " is 3: a launcher has already started the ranks",
                 std::string("without ") + launcher + ", or: unset " + name);
    unsetenv(name);
  }
}

}  // namespace
}  // namespace ladder
