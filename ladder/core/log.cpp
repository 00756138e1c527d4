// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/log.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <string>

#include "ladder/core/error.h"

namespace ladder {
namespace {

std::atomic<int> print_error = 0;  // errno of print_line(); 0 = none

// Whether PIPE_BUF bytes can be written without waiting for a reader.
bool is_ready(std::FILE* stream) {
  constexpr int kMilliseconds = 10;
  pollfd output{.fd = ::fileno(stream), .events = POLLOUT, .revents = 0};
  return ::poll(&output, 1, kMilliseconds) != 0;
}

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
  static std::atomic<bool> has_dropped = false;
  const char* const dropped = has_dropped ? "(lines dropped: the reader had paused)\n" : "";
  const auto line = fmt::format("{}{}{}{}{}\n", begin, dropped, rank, kind, text);
  has_dropped = !print_or_drop(options_.stream, line);
}

bool print_or_drop(std::FILE* stream, std::string_view text) {
  if (!is_ready(stream)) return false;
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
  return true;
}

void print_line(std::string_view text) {
  static std::array<char, 65'536> kept{};  // while the reader pauses
  static const int is_unbuffered = std::setvbuf(stdout, kept.data(), _IOFBF, kept.size());
  const std::string line = fmt::format("{}\n", text);
  const bool written = std::fwrite(line.data(), 1, line.size(), stdout) == line.size();
  const bool flushes = is_unbuffered != 0 || is_ready(stdout);
  if (!written || (flushes && std::fflush(stdout) != 0)) print_error = errno;
}

void require_lines_printed() {
  if (std::fflush(stdout) != 0) print_error = errno;
  if (const int error = print_error.exchange(0)) {
    throw SystemError::failed("write", "standard output", error);
  }
}

}  // namespace ladder
