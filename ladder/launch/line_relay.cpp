// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/line_relay.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ladder {
namespace {

constexpr std::size_t kChunkBytes =
    4096;  // PIPE_BUF: what a pipe takes whole once poll says "ready"
constexpr std::size_t kFull = 16 * kChunkBytes;
constexpr std::size_t kRemembered = 400;  // bytes of a line
constexpr std::chrono::milliseconds kPatience{200};

std::string_view without_blanks_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

}  // namespace

void LineBuffer::append(std::string_view text, Time now) {
  text_ += text;
  added_at_ = now;
  for (const char c : text) remember(c);
}

void LineBuffer::remember(char c) {
  if (c != '\n' && c != '\r') {
    if (line_.size() < kRemembered) line_ += c;
    return;
  }
  if (!without_blanks_behind(line_).empty()) last_line_ = line_;
  line_.clear();
}

void LineBuffer::finish() {
  if (!text_.empty() && text_.back() != '\n') text_ += '\n';
}

std::string_view LineBuffer::due(Time now) const {
  const std::string_view piece = std::string_view(text_).substr(0, kChunkBytes);
  const auto end = piece.rfind('\n');
  if (end != std::string_view::npos) return piece.substr(0, end + 1);
  const bool ready = piece.size() == kChunkBytes || now - added_at_ >= kPatience;
  return ready ? piece : std::string_view();
}

std::optional<LineBuffer::Time> LineBuffer::due_at() const {
  if (text_.empty()) return std::nullopt;
  return due(added_at_).empty() ? added_at_ + kPatience : added_at_;
}

bool LineBuffer::is_full() const { return text_.size() >= kFull; }

const std::string& LineBuffer::last_line() const {
  return without_blanks_behind(line_).empty() ? last_line_ : line_;
}

bool LineRelay::has_due(Time now) const {
  return std::any_of(buffers_.begin(), buffers_.end(),
                     [&](const LineBuffer& buffer) { return !buffer.due(now).empty(); });
}

std::optional<LineRelay::Time> LineRelay::due_at() const {
  std::optional<Time> first;
  for (const auto& buffer : buffers_) {
    const auto time = buffer.due_at();
    if (time && (!first || *time < *first)) first = time;
  }
  return first;
}

void LineRelay::write_piece(Time now) {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    LineBuffer& buffer = buffers_[(turn_ + i) % buffers_.size()];
    const std::string_view piece = buffer.due(now);
    if (piece.empty()) continue;
    const ssize_t written = ::write(sink_, piece.data(), piece.size());
    if (written < 0 && (errno == EAGAIN || errno == EINTR)) return;
    buffer.consume(written < 0 ? piece.size() : static_cast<std::size_t>(written));
    turn_ = (turn_ + i + 1) % buffers_.size();
    return;
  }
}

void LineRelay::flush(Time deadline) {
  for (auto& buffer : buffers_) buffer.finish();
  for (auto now = Time::clock::now(); now < deadline && has_due(now); now = Time::clock::now()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
    pollfd sink{sink_, POLLOUT, 0};
    if (::poll(&sink, 1, static_cast<int>(left.count())) > 0) write_piece(now);
  }
}

}  // namespace ladder
