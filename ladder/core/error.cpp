// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
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
  return UsageError(
      {std::string(where), "", fmt::format("expected {}, not set", expected), std::string(hint)});
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

DistributedError DistributedError::of(std::string_view where, std::string_view expected,
                                      std::string_view got, std::string_view hint) {
  return DistributedError(
      {std::string(where), std::string(expected), std::string(got), std::string(hint)});
}

DistributedError DistributedError::peer_lost(std::string_view text) {
  return of("collective" + in_current_step(), "all ranks to take part", fmt::format("\"{}\"", text),
            "see the first error of the other ranks");
}

DistributedError DistributedError::ranks_disagree(std::string_view what, std::string_view expected,
                                                  std::string_view got, std::string_view hint) {
  return of(what, expected, got, hint);
}

ChildError ChildError::of(int exit_code, std::string_view where, std::string_view expected,
                          std::string_view got, std::string_view hint) {
  return {static_cast<ExitCode>(exit_code),
          {std::string(where), std::string(expected), std::string(got), std::string(hint)}};
}

NumericError NumericError::of(std::string_view where, std::string_view expected,
                              std::string_view got, std::string_view hint) {
  return NumericError(
      {std::string(where), std::string(expected), std::string(got), std::string(hint)});
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
