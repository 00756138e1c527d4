// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string_view>

namespace ladder {

struct LogOptions {
  int rank = 0;                // of this process
  int world_size = 1;          // above 1, every line begins with "[rank N] "
  bool quiet = false;          // omit what is merely informative
  std::FILE* stream = stderr;  // not owned
};

// Whether a line is printed by every rank, also when quiet.
enum class EveryRank { kNo, kYes };

// What a program says to the person in front of it, a line at a time.
//
// All ranks run the same lines of code, so a plain print would say everything once a rank.
// Here rank 0 speaks for all, a line that concerns one rank is forced, and a warning
// always gets through.
//
// Each line leaves by one call, so that lines of processes that share a terminal do not
// mix. A line that cannot be written is dropped: a closed terminal ends no training.
//
// Python's counterparts: setup_for_distributed of PyTorch's reference scripts, whose
// print takes force=True, and Accelerate's get_logger with main_process_only.
//
//     Log log({.rank = 1, .world_size = 2});
//     log.info("epoch 1 of 3");                 // nothing: rank 0 says it
//     log.info("my shard: 3", EveryRank::kYes);     // [rank 1] my shard: 3
//     log.warn("no GPU found, using the CPU");  // [rank 1] warning: no GPU found, using the CPU
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

// A line on the standard output, for results. Throws SystemError if it cannot be written.
void print_line(std::string_view text);

}  // namespace ladder
