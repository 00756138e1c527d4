// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

// What one rank wrote and has not been passed on yet. Knows no descriptors and no clock of its
// own, so that it can be tested by itself.
class LineBuffer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void append(std::string_view text, Time now);
  // No more text comes: a line without its end gets one.
  void finish();

  // What may be passed on, at most 4096 bytes: whole lines, else a line that is too long for
  // that, else one that was left unfinished for a while, such as a prompt.
  std::string_view due(Time now) const;
  // When due() will have something if nothing is added; nothing if it waits for text.
  std::optional<Time> due_at() const;
  void consume(std::size_t count) { text_.erase(0, count); }

  bool is_full() const;
  // The last line that is not blank, cut to a length for messages; the unfinished one counts.
  const std::string& last_line() const;

 private:
  void remember(char c);

  std::string text_;
  Time added_at_;
  std::string line_;       // the beginning of the line being written
  std::string last_line_;  // the last whole one that is not blank
};

// The lines of all ranks on their way to one descriptor. Ranks take turns, and a rank that
// writes faster than the reader reads has to wait, as it would without a relay.
//
// Text that the reader refuses (a closed terminal) is dropped: it ends no training.
class LineRelay {
 public:
  using Time = LineBuffer::Time;

  LineRelay(int sink, int ranks) : sink_(sink), buffers_(static_cast<std::size_t>(ranks)) {}

  LineBuffer& of(int rank) { return buffers_[static_cast<std::size_t>(rank)]; }
  const LineBuffer& of(int rank) const { return buffers_[static_cast<std::size_t>(rank)]; }

  int sink() const { return sink_; }
  bool has_due(Time now) const;
  std::optional<Time> due_at() const;
  // Writes one piece. Call it when poll says that the sink can take it: then it does not block.
  void write_piece(Time now);
  // Writes everything, waiting until `deadline` for a sink that is busy.
  void flush(Time deadline);

 private:
  int sink_;
  std::vector<LineBuffer> buffers_;
  std::size_t turn_ = 0;
};

}  // namespace ladder
