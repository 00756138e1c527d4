// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/current_step.h"

namespace ladder {
namespace {

// A message is one line whatever a path or a value holds.
std::string printable(std::string text) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
  std::replace_if(text.begin(), text.end(), is_control, '?');
  return text;
}

std::string one_line(std::string where, const std::string& expected, const std::string& got,
                     const std::string& hint) {
  where += expected.empty() ? fmt::format(": {}", got)
                            : fmt::format(": expected {}, got {}", expected, got);
  if (!hint.empty()) where += "; hint: " + hint;
  return printable(std::move(where));
}

std::string with_dashes(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

std::string with_last_line(std::string_view line) {
  constexpr std::size_t kLongest = 300;
  const std::string_view cut = line.size() > kLongest ? "..." : "";
  return line.empty() ? ""
                      : fmt::format("; its last line: \"{}{}\"", line.substr(0, kLongest), cut);
}

std::string in_step() {
  return current_step() == 0 ? "" : fmt::format(", step {}", current_step());
}

std::string_view hint_for_signal(int signal) {
  if (signal == SIGKILL) return "see whether memory ran out: dmesg | grep -i 'out of memory'";
  const bool crashed = signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS ||
                       signal == SIGFPE || signal == SIGILL;
  if (crashed) return "run again after: ulimit -c unlimited, and open the core file in gdb";
  return "somebody or something else sent it: see the log of your batch system";
}

// Damerau-Levenshtein distance, the form that swaps neighbours once.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

// "60", or "0.5" for half a second.
std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{}", static_cast<double>(time.count()) / 1000.0);
}

}  // namespace

Error::Error(ExitCode exit_code, const Parts& parts)
    : std::runtime_error(one_line(parts.where, parts.expected, parts.got, parts.hint)),
      exit_code_(exit_code) {}

UsageError UsageError::out_of_range(std::string_view where, double got, std::string_view expected,
                                    std::string_view hint) {
  return UsageError(
      {std::string(where), std::string(expected), fmt::format("{}", got), std::string(hint)});
}

UsageError UsageError::whole_number_out_of_range(std::string_view where, const std::string& got,
                                                 std::string_view expected, std::string_view hint) {
  return UsageError({std::string(where), std::string(expected), got, std::string(hint)});
}

UsageError UsageError::unknown_name(std::string_view where, std::string_view got,
                                    std::span<const std::string> choices) {
  const std::string nearest = nearest_name(got, choices);
  return UsageError({std::string(where), fmt::format("one of {}", fmt::join(choices, ", ")),
                     fmt::format("'{}'", got),
                     nearest.empty() ? "" : fmt::format("did you mean {}?", nearest)});
}

UsageError UsageError::conflict(std::string_view where, std::string_view got,
                                std::string_view hint) {
  return UsageError({std::string(where), "", std::string(got), std::string(hint)});
}

UsageError UsageError::missing(std::string_view where, std::string_view expected,
                               std::string_view hint) {
  return UsageError({std::string(where), std::string(expected), "nothing", std::string(hint)});
}

UsageError UsageError::malformed(std::string_view where, std::string_view expected,
                                 std::string_view got, std::string_view hint) {
  return UsageError(
      {std::string(where), std::string(expected), fmt::format("'{}'", got), std::string(hint)});
}

DataError DataError::missing_file(std::string_view path, std::string_view hint) {
  return DataError({std::string(path), "a readable file", "none", std::string(hint)});
}

DataError DataError::mismatch(std::string_view path, std::string_view expected,
                              std::string_view got, std::string_view hint) {
  return DataError({std::string(path), std::string(expected), std::string(got), std::string(hint)});
}

DistributedError DistributedError::images_counted(std::int64_t expected, std::int64_t got) {
  return DistributedError({"evaluation", fmt::format("{} images counted once each", expected),
                           fmt::format("{}", got),
                           "give each rank its own part of the test set, without padding"});
}

DistributedError DistributedError::collective_failed(std::string_view operation, int rank,
                                                     int world_size, std::string_view cause,
                                                     std::string_view hint) {
  return DistributedError(
      {fmt::format("{} on rank {} of {}{}", operation, rank, world_size, in_step()), "",
       std::string(cause.substr(0, cause.find('\n'))),
       hint.empty() ? "another rank is gone or late: its own last lines say why"
                    : std::string(hint)});
}

DistributedError DistributedError::ranks_missing(std::span<const int> missing, int world_size,
                                                 std::chrono::milliseconds timeout) {
  return DistributedError(
      {"rendezvous", fmt::format("{} ranks within {} s", world_size, seconds_text(timeout)),
       fmt::format("none from rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", ")),
       "look at what those ranks printed; were as many started as WORLD_SIZE says?"});
}

DistributedError DistributedError::unused_parameters(std::span<const std::string> names) {
  return DistributedError({"backward", "a gradient for every parameter",
                           fmt::format("none for {}", fmt::join(names, ", ")),
                           "leave what is not used out of the model, or set "
                           "find_unused_parameters"});
}

DistributedError DistributedError::no_rendezvous(std::string_view address, std::string_view cause,
                                                 std::string_view hint) {
  return DistributedError({fmt::format("store at {}", address), "",
                           std::string(cause.substr(0, cause.find('\n'))), std::string(hint)});
}

DistributedError DistributedError::ranks_disagree(std::string_view what, std::string_view expected,
                                                  std::string_view got, std::string_view hint) {
  return DistributedError(
      {std::string(what), std::string(expected), std::string(got), std::string(hint)});
}

DistributedError DistributedError::peer_lost(std::string_view text) {
  return DistributedError({"collective" + in_step(), "all ranks to take part",
                           fmt::format("\"{}\"", text),
                           "the first error of the other ranks says why"});
}

DistributedError DistributedError::port_in_use(int port) {
  return DistributedError({fmt::format("MASTER_PORT {}", port), "a free port",
                           fmt::format("'{}'", std::strerror(EADDRINUSE)),
                           fmt::format("end the program that holds it (ss -ltnp 'sport = {}' names "
                                       "it); --master-port 0 takes a free one",
                                       port)});
}

DistributedError DistributedError::rank_killed(std::string_view rank, int signal,
                                               std::string_view last_line) {
  return DistributedError(
      {std::string(rank), "exit code 0",
       fmt::format("signal {} ({}){}", signal, strsignal(signal), with_last_line(last_line)),
       std::string(hint_for_signal(signal))});
}

ChildError ChildError::exited(std::string_view rank, int exit_code, std::string_view last_line,
                              std::string_view hint) {
  return {static_cast<ExitCode>(exit_code),
          {std::string(rank), "exit code 0",
           fmt::format("{}{}", exit_code, with_last_line(last_line)), std::string(hint)}};
}

DistributedError DistributedError::gradient_of_another_rank(std::int64_t epoch, std::int64_t step) {
  return DistributedError(
      {fmt::format("epoch {}, step {}", epoch, step), "finite gradients",
       "NaN or infinity from another rank, or an overflow of all",
       "a rank whose loss is not finite says which samples it had; without one, "
       "lower --lr"});
}

NumericError NumericError::loss_not_finite(double loss, std::int64_t epoch, std::int64_t step,
                                           std::string_view circumstances) {
  return NumericError({fmt::format("epoch {}, step {}", epoch, step), "a finite loss",
                       circumstances.empty() ? fmt::format("{}", loss)
                                             : fmt::format("{} ({})", loss, circumstances),
                       "lower --lr, or look for the first odd step with --fingerprint 1"});
}

NumericError NumericError::weights_not_finite(std::string_view path, std::string_view tensor) {
  return NumericError({std::string(path), "finite weights",
                       fmt::format("NaN or infinity in {}; nothing was saved", tensor),
                       "lower --lr, and go on from an older checkpoint"});
}

SystemError SystemError::failed(std::string_view operation, std::string_view path, int errno_value,
                                std::string_view hint) {
  return SystemError({std::string(path), "",
                      fmt::format("{}: {}", operation, std::strerror(errno_value)),
                      std::string(hint)});
}

SystemError SystemError::write_failed(std::string_view path, int errno_value) {
  const bool full = errno_value == ENOSPC || errno_value == EDQUOT;
  return failed("write", path, errno_value, full ? "free some space on its disk: df -h" : "");
}

std::string nearest_name(std::string_view name, std::span<const std::string> choices) {
  const std::string wanted = with_dashes(name);
  const std::size_t limit = std::max<std::size_t>(2, wanted.size() / 3);
  std::string best;
  std::size_t best_distance = limit + 1;
  for (const auto& choice : choices) {
    const std::size_t distance = edit_distance(wanted, with_dashes(choice));
    if (distance < best_distance) {
      best = choice;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace ladder
