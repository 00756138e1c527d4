// SPDX-License-Identifier: Apache-2.0
#include "exercises/grader/grader.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
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

using Text = std::array<char, 4096>;

void put(Text& into, std::string_view text) {
  into.fill(0);
  std::copy_n(text.begin(), std::min(text.size(), into.size() - 1), into.begin());
}

// How a rank ended. In a transfer or a collective: it waited for another rank in vain.
enum class End { kNone, kFinished, kTransfer, kCollective };

struct RankState {
  std::atomic<End> end{End::kNone};
  Text where{};      // of running()
  Text if_killed{};  // of running()
  Text lost{};       // what the wait threw
  std::uint64_t results = 0;
  double sum = 0;  // of the results
  double magnitude = 0;

  bool waited() const { return end == End::kTransfer || end == End::kCollective; }
};

// Memory that the ranks share with this process: the first cause of a failure, and how each ended.
struct Verdict {
  std::atomic<bool> forked{false};
  std::atomic<bool> has_cause{false};
  Text cause{};
  std::atomic<int> first_lost{-1};  // the rank that first waited in vain
  std::array<RankState, 8> ranks;

  // The first rank that `is`, or -1.
  int find(const std::function<bool(const RankState&)>& is, int world_size) const {
    const auto* end = ranks.begin() + world_size;
    const auto* found = std::find_if(ranks.begin(), end, is);
    return found == end ? -1 : static_cast<int>(found - ranks.begin());
  }

  std::string results() const {
    double sum = 0;
    double magnitude = 0;
    for (const auto& rank : ranks) sum += rank.sum, magnitude += rank.magnitude;
    return fmt::format(" {:.9g} {:.9g}", sum, magnitude);
  }
};

RankState* this_rank = nullptr;  // in the process of a rank

std::string text_of(const Wrong& wrong) {
  return fmt::format("expected: {}\ngot:      {}\nusually:  {}", wrong.expected, wrong.got,
                     wrong.usually);
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, std::min<std::size_t>(text.find('\n'), 500)));
}

// Hints of spawn and of a lost rank are for programs, not for the code of a learner.
std::string without_hint(std::string_view text) {
  return first_line(text.substr(0, text.find("; hint: ")));
}

// What `where` of a rank adds before an expectation.
std::string place_of(const RankState& rank) {
  return rank.where[0] == 0 ? "" : fmt::format("{}: ", rank.where.data());
}

// `origin`: of the exception.
std::string thrown(std::string_view what, std::string_view origin) {
  return fmt::format(
      "expected: {}no exception\ngot:      {}\n"
      "usually:  an exception from {}; these are its words",
      place_of(*this_rank), first_line(what), origin);
}

// Of ranks that waited in vain, while none has a cause of its own.
std::string waited(const Verdict& verdict, int world_size) {
  const auto first = [&](bool (*is)(const RankState&)) { return verdict.find(is, world_size); };
  const auto in_code = first([](const RankState& r) { return r.waited() && r.where[0] != 0; });
  const auto outside = first([](const RankState& r) { return r.where[0] == 0; });
  const auto running = first([](const RankState& r) { return r.end == End::kNone; });
  const auto in_collective = first([](const RankState& r) { return r.end == End::kCollective; });
  // What ends a wait ends others after it, so the first one in time has the words of the fault.
  const int waiting = verdict.first_lost;
  const auto& rank = verdict.ranks.at(static_cast<std::size_t>(waiting));
  const auto text = [&](const char* expected, const std::string& usually) {
    return fmt::format("expected: {}{}\ngot:      {}\nusually:  {}", place_of(rank), expected,
                       rank.lost.data(), usually);
  };
  if (running >= 0) {
    return text("all ranks come to an end",
                fmt::format("rank {} still runs, and others wait for it: a loop does not end, or "
                            "exit() has ended the rank",
                            running));
  }
  if (in_code >= 0 && outside >= 0) {
    return text("all ranks take part until the end",
                fmt::format("rank {} has returned, and others wait for it: a `return` or a message "
                            "is inside an `if` or a loop that differs from rank to rank",
                            outside));
  }
  if (in_collective >= 0) {
    return text("every rank makes the same collectives, in the same order",
                "a collective is inside an `if` or a loop that differs from rank to rank");
  }
  return text("each message that a rank waits for is sent",
              "all ranks wait in a recv, or in a send, whose other end comes later: begin with "
              "isend");
}

// Runs the check in a rank. Exit codes: 0, 1 for a cause, 4 for a consequence, as spawn expects.
[[noreturn]] void run_in_rank(Verdict& verdict, int rank, const std::function<void()>& check) {
  const auto process = ::getpid();
  this_rank = &verdict.ranks.at(static_cast<std::size_t>(rank));
  const auto cause = [&](const std::string& text) {
    if (!verdict.has_cause.exchange(true)) put(verdict.cause, text);
  };
  int code = 1;
  try {
    check();
    code = 0;
  } catch (const Wrong& wrong) {
    cause(text_of(wrong));
  } catch (const NotWrittenYet& error) {
    cause(error.what());
  } catch (const DistributedError& error) {
    const std::string_view what = error.what();
    const bool transfer = what.starts_with("send") || what.starts_with("recv");
    put(this_rank->lost, without_hint(what));
    this_rank->end = transfer ? End::kTransfer : End::kCollective;
    int none = -1;
    verdict.first_lost.compare_exchange_strong(none, rank);
    if (what.find(", this rank expected ") != std::string_view::npos) {
      cause(
          fmt::format("expected: {}both ends of a message have one size and dtype\ngot:      {}\n"
                      "usually:  the tensor to receive into has another size than the one sent, or "
                      "a message meets the recv of another one",
                      place_of(*this_rank), without_hint(what)));
    }
    code = 4;
  } catch (const c10::Error& error) {
    cause(thrown(error.what_without_backtrace(), "LibTorch"));
  } catch (const std::exception& error) {
    cause(thrown(error.what(), "the code or the library"));
  } catch (...) {
    cause(thrown("another type than std::exception", "the code"));
  }
  std::fflush(nullptr);
  if (::getpid() != process) {
    verdict.forked = true;
    ::_exit(1);
  }
  if (code == 0) this_rank->end = End::kFinished;
  ::_exit(code);
}

bool is_timeout(const std::string& error) { return error.find("signal 14 ") != std::string::npos; }

// What spawn reports about ranks that left no text: they were killed, or ended themselves.
std::string ended(const Verdict& verdict, int world_size, const std::string& error,
                  unsigned seconds) {
  const int running =
      verdict.find([](const RankState& rank) { return rank.end == End::kNone; }, world_size);
  const auto& rank = verdict.ranks.at(static_cast<std::size_t>(std::max(running, 0)));
  if (is_timeout(error)) {
    return fmt::format(
        "expected: {}an end within {} s\ngot:      the code still ran\n"
        "usually:  a loop does not end, or a rank waits for a message that no rank sends",
        place_of(rank), seconds);
  }
  const bool killed = error.find("signal") != std::string::npos;
  return fmt::format(
      "expected: {}every rank returns from the code\ngot:      {}\nusually:  {}", place_of(rank),
      error.empty() ? "a rank ended inside it, as by exit()" : without_hint(error),
      !killed ? "exit() or _exit() ends the process: return from the function instead"
      : rank.if_killed[0] != 0 ? rank.if_killed.data()
                               : "for SIGSEGV and SIGABRT: an index or pointer outside its range");
}

// What the ratio of the times, each the shortest of three, usually means.
std::string explained(double ratio) {
  if (ratio < 0.7)
    return "yours is shorter: the library also checks arguments and serves more cases";
  if (ratio < 1.5) return "about equal: a busy machine makes such a difference";
  return fmt::format(
      "yours takes {:.2g} times as long, the shortest of three runs each: look for a copy, a "
      "message "
      "or a wait that the library saves",
      ratio);
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

void running(const std::string& where, const std::string& if_killed) {
  put(this_rank->where, where);
  put(this_rank->if_killed, if_killed);
}

std::uint64_t fresh_seed() {
  const char* text = std::getenv("LADDER_EXERCISE_SEED");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

void result(const torch::Tensor& tensor) {
  const auto values = tensor.detach().to(torch::kFloat64).flatten();
  auto generator = at::detail::createCPUGenerator(fresh_seed() + this_rank->results++);
  const auto weights = torch::rand(values.sizes(), generator, torch::kFloat64) + 0.5;
  this_rank->sum += (values * weights).sum().item<double>();
  this_rank->magnitude += values.abs().sum().item<double>();
}

void result(std::string_view exact) {
  constexpr int kBits = 20;  // so few that sums with other results keep them
  const auto hash = std::hash<std::string_view>()(exact) >> (64 - kBits);
  result(torch::tensor(static_cast<double>(hash) + 1));
}

Grader::Outcome Grader::run(int world_size, const std::function<void()>& check, unsigned seconds) {
  const Shared<Verdict> verdict;
  std::string error;
  const auto run_rank = [&](int rank) {
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::alarm(seconds);
    run_in_rank(*verdict, rank, check);
  };
  try {
    spawn(run_rank, {.nprocs = world_size, .grace = kGrace});
  } catch (const Error& thrown_by_spawn) {
    error = thrown_by_spawn.what();
  }
  if (verdict->forked) {
    return {
        "expected: one process per rank\ngot:      a process that the code forked returned\n"
        "usually:  the child of fork() does not end with _exit()"};
  }
  if (verdict->has_cause) return {verdict->cause.data()};
  const auto lost = verdict->find([](const RankState& rank) { return rank.waited(); }, world_size);
  if (lost >= 0 && error.find("signal") == std::string::npos) {
    return {waited(*verdict, world_size), /*late=*/true};
  }
  const auto unfinished = [](const RankState& rank) { return rank.end != End::kFinished; };
  if (verdict->find(unfinished, world_size) < 0) return {.results = verdict->results()};
  return {ended(*verdict, world_size, error, seconds), is_timeout(error)};
}

void Grader::property(const std::string& title, int world_size,
                      const std::function<void(const ProcessGroup&)>& check, unsigned seconds) {
  property_without_group(title, world_size, [&] { check(make_group()); }, seconds);
}

void Grader::property_without_group(const std::string& title, int world_size,
                                    const std::function<void()>& check, unsigned seconds) {
  const auto outcome = run(world_size, check, seconds);
  if (!outcome.reason.empty()) fail(title, outcome.reason);
  results_ += outcome.results;
  fmt::print(report_, "ok     {}\n", title);
}

void Grader::results() const { fmt::print(report_, "results{}\n", results_); }

void Grader::fail(const std::string& title, const std::string& reason) {
  fmt::print(report_, "wrong  {}\n", title);
  std::istringstream lines(reason);
  for (std::string line; std::getline(lines, line);) fmt::print(report_, "       {}\n", line);
  throw Failed();
}

void Grader::compare_times(int world_size, const std::string& what,
                           const std::function<void(const ProcessGroup&)>& yours,
                           const std::function<void(const ProcessGroup&)>& library) {
  if (!measures_) return;
  struct Seconds {
    double yours = 0;
    double library = 0;
  };
  const Shared<Seconds> seconds;
  const auto measure = [](const auto& run_once) {
    double best = 0;
    for (int i = 0; i < 3; ++i) {
      const double start = steady_seconds();
      run_once();
      const double one = steady_seconds() - start;
      best = i == 0 ? one : std::min(best, one);
    }
    return best;
  };
  constexpr unsigned kSeconds = 30;
  const auto outcome = run(
      world_size,
      [&] {
        const auto group = make_group();
        const Seconds own{measure([&] { yours(group); }), measure([&] { library(group); })};
        if (group.rank() == 0) *seconds = own;
      },
      kSeconds);
  if (outcome.late) {
    fmt::print(report_, "time   {}: not measured, no end within {} s\n", what, kSeconds);
    return;
  }
  if (!outcome.reason.empty()) fail(what, outcome.reason);
  fmt::print(report_, "time   {}: yours {:.3g} ms, the library's {:.3g} ms\n       {}\n", what,
             1000 * seconds->yours, 1000 * seconds->library,
             explained(seconds->yours / seconds->library));
}

}  // namespace ladder::exercises
