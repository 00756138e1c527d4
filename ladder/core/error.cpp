// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ladder/core/system_limits.h"

namespace ladder {
namespace {

std::string one_line(std::string_view where, std::string_view expected, std::string_view got,
                     std::string_view hint) {
  std::string text = expected.empty()
                         ? fmt::format("{}: {}", where, got)
                         : fmt::format("{}: expected {}, got {}", where, expected, got);
  if (!hint.empty()) text += fmt::format("; hint: {}", hint);
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
  std::replace_if(text.begin(), text.end(), is_control, '?');  // of a path or a value
  return text;
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

// One thing under the names that launchers, PyTorch's examples and transformers give it.
constexpr std::string_view kSynonyms[] = {
    " nprocs num-processes nproc-per-node nproc num-gpus n-gpu gpus-per-node world-size ",
    " lr learning-rate base-lr ",
    " epochs num-train-epochs num-epochs max-epochs total-epochs n-epochs ",
    " batch-size per-device-train-batch-size train-batch-size per-gpu-train-batch-size ",
    " eval-batch-size per-device-eval-batch-size test-batch-size val-batch-size ",
    " num-workers dataloader-num-workers workers ",
    " device use-cpu no-cuda no-accel ",
    " data-root data-dir data-path dataset-path data ",
    " save save-model save-path model-path "};

std::string synonym_of(std::string_view name, std::span<const std::string> choices) {
  const auto word = [](std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of('-'), text.size()));
    return fmt::format(" {} ", text);
  };
  for (const auto synonyms : kSynonyms) {
    if (synonyms.find(word(name)) == synonyms.npos) continue;
    for (const auto& choice : choices) {
      if (choice.ends_with("world-size")) continue;  // which a launcher has set, not one to start
      if (synonyms.find(word(with_dashes(choice))) != synonyms.npos) return choice;
    }
  }
  return "";
}

}  // namespace

Error::Error(ExitCode exit_code, const Parts& parts)
    : std::runtime_error(one_line(parts.where, parts.expected, parts.got, parts.hint)),
      exit_code_(exit_code) {}

UsageError UsageError::out_of_range(std::string_view where, double got, std::string_view expected,
                                    std::string_view hint) {
  return UsageError({where, expected, fmt::format("{}", got), hint});
}

UsageError UsageError::unknown_name(std::string_view where, std::string_view got,
                                    std::span<const std::string> choices) {
  const std::string nearest = nearest_name(got, choices);
  return malformed(where, fmt::format("one of {}", fmt::join(choices, ", ")), got,
                   nearest.empty() ? "" : fmt::format("did you mean {}?", nearest));
}

UsageError UsageError::missing(std::string_view where, std::string_view expected,
                               std::string_view hint) {
  return UsageError({where, "", fmt::format("expected {}, not set", expected), hint});
}

UsageError UsageError::malformed(std::string_view where, std::string_view expected,
                                 std::string_view got, std::string_view hint) {
  return UsageError({where, expected, fmt::format("'{}'", got), hint});
}

void require_between(std::string_view where, std::int64_t value, std::int64_t least,
                     std::int64_t most, std::string_view hint) {
  if (value >= least && value <= most) return;
  throw UsageError::out_of_range(where, value, fmt::format("{} to {}", least, most), hint);
}

void require_at_least(std::string_view where, std::int64_t value, std::int64_t least,
                      std::string_view hint) {
  if (value >= least) return;
  throw UsageError::out_of_range(where, value, fmt::format("a number >= {}", least), hint);
}

SystemError SystemError::failed(std::string_view operation, std::string_view path, int errno_value,
                                std::string_view hint) {
  return SystemError({path, "", fmt::format("{}: {}", operation, std::strerror(errno_value)),
                      hint.empty() ? hint_for_errno(errno_value, path) : std::string(hint)});
}

std::string nearest_name(std::string_view name, std::span<const std::string> choices) {
  const std::string wanted = with_dashes(name);
  if (auto synonym = synonym_of(wanted, choices); !synonym.empty()) return synonym;
  const std::size_t limit = std::max<std::size_t>(2, wanted.size() / 3);
  std::string best;
  std::size_t best_distance = limit + 1;
  for (const auto& choice : choices) {
    const auto other = with_dashes(choice);
    const bool is_long = wanted.size() > 4;  // "batch" for "batch-size"
    if (is_long && other.starts_with(wanted)) return choice;
    const std::size_t distance = edit_distance(wanted, other);
    if (distance < best_distance) {
      best = choice;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace ladder
