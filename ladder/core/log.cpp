// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>

#include "ladder/core/error.h"

namespace ladder {
namespace {

std::atomic<int> print_error = 0;  // errno of print_line(); 0 = none

}  // namespace

bool is_terminal(std::FILE* stream) { return ::isatty(::fileno(stream)) == 1; }

void Log::info(std::string_view text, EveryRank every_rank) const {
  const bool prints = options_.rank == 0 && !options_.quiet;
  if (prints || every_rank == EveryRank::kYes) print("", text);
}

void Log::warn(std::string_view text) const { print("warning: ", text); }

void Log::print(std::string_view kind, std::string_view text) const {
  const std::string rank = options_.world_size > 1 ? fmt::format("[rank {}] ", options_.rank) : "";
  // On a terminal, in the place of the line that a ProgressBar may have left open.
  const char* const begin = is_terminal(options_.stream) ? "\r\x1b[K" : "";
  const std::string line = fmt::format("{}{}{}{}\n", begin, rank, kind, text);
  std::fwrite(line.data(), 1, line.size(), options_.stream);
  std::fflush(options_.stream);
}

void print_line(std::string_view text) {
  const std::string line = fmt::format("{}\n", text);
  const bool written = std::fwrite(line.data(), 1, line.size(), stdout) == line.size();
  if (!written || std::fflush(stdout) != 0) print_error = errno;
}

void require_lines_printed() {
  if (const int error = print_error.exchange(0)) {
    throw SystemError::failed("write", "standard output", error);
  }
}

}  // namespace ladder
