// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string_view>

namespace ladder {

// Whether a stream is a terminal, as opposed to a file or a pipe.
bool is_terminal(std::FILE* stream);

struct LogOptions {
  int rank = 0;                // of this process
  int world_size = 1;          // above 1, every line begins with "[rank N] "
  bool quiet = false;          // omit info lines
  std::FILE* stream = stderr;  // not owned
};

// Whether every rank prints a line, also when quiet.
enum class EveryRank { kNo, kYes };

// Progress and warnings of a program, one line at a time.
//
// All ranks run the same code, so a plain print would print each line once per rank. Here rank 0
// prints for all; every rank prints warnings and lines that are its own.
//
// Each line is one write, so lines of processes that share a terminal do not mix. A line that
// cannot be written at once is dropped: a closed terminal ends no training, and a reader that
// pauses (Ctrl-S, a full pipe) holds none up. The next line reports it.
//
// Python's counterparts: setup_for_distributed of PyTorch's reference scripts, whose
// print takes force=True, and Accelerate's get_logger with main_process_only.
//
//     Log log({.rank = 1, .world_size = 2});
//     log.info("epoch 1 of 3");                  // nothing: rank 0 prints it
//     log.info("my shard: 3", EveryRank::kYes);  // [rank 1] my shard: 3
//     log.warn("no GPU found, using the CPU");   // [rank 1] warning: no GPU found, using the CPU
class Log {
 public:
  explicit Log(LogOptions options = {}) : options_(options) {}

  // `text` is one line without its end.
  void info(std::string_view text, EveryRank every_rank = EveryRank::kNo) const;
  void warn(std::string_view text) const;

 private:
  void print(std::string_view kind, std::string_view text) const;

  LogOptions options_;
};

// Writes and flushes a text of at most PIPE_BUF bytes, unless the stream's reader has paused.
// Returns whether it did not drop the text.
bool print_or_drop(std::FILE* stream, std::string_view text);

// Prints a result to the standard output; while its reader pauses, it stays in the buffer of the
// stream. A line that cannot be written ends nothing: what is still to be saved is worth more.
void print_line(std::string_view text);

// Flushes the standard output, for the end of a program. Throws SystemError if a line of
// print_line() could not be written.
void require_lines_printed();

}  // namespace ladder
