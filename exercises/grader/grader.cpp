// SPDX-License-Identifier: Apache-2.0
#include "exercises/grader/grader.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <sstream>
#include <string_view>

#include "exercises/grader/shared.h"
#include "ladder/comm/init_process_group.h"
#include "ladder/core/clock.h"
#include "ladder/core/device.h"
#include "ladder/core/error.h"
#include "ladder/launch/spawn.h"

namespace ladder::exercises {
namespace {

constexpr std::chrono::milliseconds kGroupTimeout{4'000};
constexpr std::chrono::milliseconds kGrace{1'000};

// Memory that the ranks share with this process: the first text of each kind, and counts.
struct Verdict {
  using Text = std::array<char, 4096>;

  std::atomic<int> finished{0};  // ranks that came to the end of the property
  std::atomic<bool> forked{false};
  std::atomic<bool> has_cause{false};
  std::atomic<bool> has_consequence{false};
  Text cause{};
  Text consequence{};  // of a rank that waited for another one in vain

  static void put(std::atomic<bool>& taken, Text& into, std::string_view text) {
    if (taken.exchange(true)) return;
    const auto size = std::min(text.size(), into.size() - 1);
    std::copy_n(text.begin(), size, into.begin());
  }
};

std::string text_of(const Wrong& wrong) {
  return fmt::format("expected: {}\ngot:      {}\nusually:  {}", wrong.expected, wrong.got,
                     wrong.usually);
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, std::min<std::size_t>(text.find('\n'), 500)));
}

// `origin`: of the exception.
std::string thrown(std::string_view what, std::string_view origin) {
  return fmt::format(
      "expected: no exception\ngot:      {}\nusually:  an exception from {}; these are its words",
      first_line(what), origin);
}

// Of a collective that failed, while no rank has a cause of its own.
std::string waited(std::string_view what) {
  if (what.starts_with("send") || what.starts_with("recv")) {
    return fmt::format(
        "expected: each message that a rank waits for is sent\ngot:      {}\n"
        "usually:  all ranks wait in a recv, or in a send, whose other end comes later: begin with "
        "isend",
        first_line(what));
  }
  return fmt::format(
      "expected: every rank makes the same collectives, in the same order\ngot:      {}\n"
      "usually:  a collective is inside an `if` or a loop that differs from rank to rank",
      first_line(what));
}

// Runs the check in a rank. Exit codes: 0, 1 for a cause, 4 for a consequence, as spawn expects.
[[noreturn]] void run_in_rank(Verdict& verdict, const std::function<void()>& check) {
  const auto rank = ::getpid();
  int code = 1;
  try {
    check();
    code = 0;
  } catch (const Wrong& wrong) {
    Verdict::put(verdict.has_cause, verdict.cause, text_of(wrong));
  } catch (const NotWrittenYet& error) {
    Verdict::put(verdict.has_cause, verdict.cause, error.what());
  } catch (const DistributedError& error) {
    Verdict::put(verdict.has_consequence, verdict.consequence, waited(error.what()));
    code = 4;
  } catch (const c10::Error& error) {
    Verdict::put(verdict.has_cause, verdict.cause,
                 thrown(error.what_without_backtrace(), "LibTorch"));
  } catch (const std::exception& error) {
    Verdict::put(verdict.has_cause, verdict.cause, thrown(error.what(), "the code or the library"));
  } catch (...) {
    Verdict::put(verdict.has_cause, verdict.cause,
                 thrown("another type than std::exception", "the code"));
  }
  std::fflush(nullptr);
  if (::getpid() != rank) {
    verdict.forked = true;
    ::_exit(1);
  }
  if (code == 0) ++verdict.finished;
  ::_exit(code);
}

// What spawn reports about ranks that left no text: they were killed, or ended themselves.
std::string ended(const std::string& error, unsigned seconds) {
  if (error.find("signal 14 ") != std::string::npos) {
    return fmt::format(
        "expected: an end within {} s\ngot:      the code still ran\n"
        "usually:  a loop does not end, or a rank waits for a message that no rank sends",
        seconds);
  }
  return fmt::format(
      "expected: every rank returns from the code\ngot:      {}\n"
      "usually:  for SIGSEGV and SIGABRT: an index or pointer outside its range, or a hook that "
      "captured a local by reference: [this, i]",
      error.empty() ? "a rank ended inside it, as by exit()" : first_line(error));
}

ProcessGroup make_group() {
  prepare_process({.requested = 1});
  return init_process_group({.timeout = kGroupTimeout, .device = "cpu"});
}

}  // namespace

void expect(bool holds, const std::string& expected, const std::string& got,
            const std::string& usually) {
  if (!holds) throw Wrong{expected, got, usually};
}

// Returns "" or the reason.
std::string Grader::run(int world_size, const std::function<void()>& check, unsigned seconds) {
  const Shared<Verdict> verdict;
  std::string error;
  const auto rank = [&](int /*rank*/) {
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::alarm(seconds);
    run_in_rank(*verdict, check);
  };
  try {
    spawn(rank, {.nprocs = world_size, .grace = kGrace});
  } catch (const Error& thrown_by_spawn) {
    error = thrown_by_spawn.what();
  }
  if (verdict->forked) {
    return "expected: one process per rank\ngot:      a process that the code forked returned\n"
           "usually:  the child of fork() does not end with _exit()";
  }
  if (verdict->has_cause) return verdict->cause.data();
  if (verdict->has_consequence && error.find("signal") == std::string::npos) {
    return verdict->consequence.data();
  }
  return verdict->finished == world_size ? "" : ended(error, seconds);
}

void Grader::property(const std::string& title, int world_size,
                      const std::function<void(const ProcessGroup&)>& check, unsigned seconds) {
  property_without_group(title, world_size, [&] { check(make_group()); }, seconds);
}

void Grader::property_without_group(const std::string& title, int world_size,
                                    const std::function<void()>& check, unsigned seconds) {
  const auto reason = run(world_size, check, seconds);
  if (!reason.empty()) fail(title, reason);
  fmt::print(report_, "ok     {}\n", title);
}

void Grader::fail(const std::string& title, const std::string& reason) {
  fmt::print(report_, "wrong  {}\n", title);
  std::istringstream lines(reason);
  for (std::string line; std::getline(lines, line);) fmt::print(report_, "       {}\n", line);
  throw Failed();
}

void Grader::compare_times(int world_size, const std::string& what,
                           const std::function<void(const ProcessGroup&)>& yours,
                           const std::function<void(const ProcessGroup&)>& library) {
  struct Seconds {
    double yours = 0;
    double library = 0;
  };
  const Shared<Seconds> seconds;
  const auto measure = [](const auto& run_once) {
    double best = 0;
    for (int i = 0; i < 5; ++i) {
      const double start = steady_seconds();
      run_once();
      const double one = steady_seconds() - start;
      best = i == 0 ? one : std::min(best, one);
    }
    return best;
  };
  const auto reason = run(
      world_size,
      [&] {
        const auto group = make_group();
        const Seconds own{measure([&] { yours(group); }), measure([&] { library(group); })};
        if (group.rank() == 0) *seconds = own;
      },
      /*seconds=*/10);
  if (!reason.empty()) fail(what, reason);
  fmt::print(report_, "time   {}: yours {:.3g} ms, the library's {:.3g} ms\n", what,
             1000 * seconds->yours, 1000 * seconds->library);
}

}  // namespace ladder::exercises
