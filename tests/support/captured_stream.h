// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace ladder {

// A stream to hand to code under test, and what that code wrote to it.
//
// A pipe in packet mode, so that each write(2) of at most 4096 bytes can be read back as
// such. It holds some 60 kB; a test that writes more would wait for ever.
class CapturedStream {
 public:
  CapturedStream() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_DIRECT | O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    fcntl(ends[0], F_SETFL, O_DIRECT | O_NONBLOCK);
    read_end_ = ends[0];
    stream_ = fdopen(ends[1], "w");
  }
  ~CapturedStream() {
    std::fclose(stream_);
    close(read_end_);
  }
  CapturedStream(const CapturedStream&) = delete;
  CapturedStream& operator=(const CapturedStream&) = delete;

  std::FILE* get() const { return stream_; }

  // What one call wrote; empty if there is no more. Does not flush: that is the code's duty.
  std::string next_write() const {
    std::array<char, 4096> buffer{};
    const ssize_t count = ::read(read_end_, buffer.data(), buffer.size());
    return {buffer.data(), static_cast<std::size_t>(count > 0 ? count : 0)};
  }

  // All that was written and not read yet.
  std::string text() const {
    std::string text;
    for (std::string piece = next_write(); !piece.empty(); piece = next_write()) text += piece;
    return text;
  }

 private:
  int read_end_ = -1;
  std::FILE* stream_ = nullptr;
};

}  // namespace ladder
