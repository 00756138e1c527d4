// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>

#include "tests/support/sample_files.h"

// Sanitizers abort, so that the handler below is called, and take no gibibytes for a claim of a
// file.
extern "C" inline const char* __asan_default_options() {
  return "abort_on_error=1:max_allocation_size_mb=256";
}
extern "C" inline const char* __ubsan_default_options() {
  return "abort_on_error=1:print_stacktrace=1";
}

namespace ladder {

// An input that is being parsed; references, for a signal handler.
struct Input {
  const char* parser = nullptr;
  std::uint64_t seed = 0;
  std::int64_t number = 0;
  const Bytes* bytes = nullptr;
};

// An input that a parser neither takes nor refuses becomes a file in the current folder, from which
// the same happens again: finding-PARSER-SEED-INPUT. A line shows the reason, and the command that
// repeats it. Calls only what a signal handler may call, and snprintf, which takes no memory for
// these.
inline void write_finding(const Input& input, const char* reason) {
  std::array<char, 256> name{};
  std::array<char, 1024> line{};
  std::snprintf(name.data(), name.size(), "finding-%s-%llu-%lld", input.parser,
                static_cast<unsigned long long>(input.seed), static_cast<long long>(input.number));
  const int file = open(name.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  const auto size = static_cast<ssize_t>(input.bytes->size());
  const bool written = file >= 0 && write(file, input.bytes->data(), input.bytes->size()) == size;
  if (file >= 0) close(file);
  const int length = std::snprintf(
      line.data(), line.size(), "%s: %.400s: %s %s; again: parser_mutations --only %s --file %s\n",
      input.parser, reason, written ? "wrote" : "CANNOT WRITE", name.data(), input.parser,
      name.data());
  if (length <= 0) return;
  const auto shown = std::min(static_cast<std::size_t>(length), line.size() - 1);
  static_cast<void>(write(STDERR_FILENO, line.data(), shown));
}

// Marks an input as being parsed. If the process is aborted meanwhile, as it is by a report of a
// sanitizer, or the input takes more than a minute, the file is written before the process ends.
class UnderWay {
 public:
  explicit UnderWay(const Input& input) {
    static const bool listening =
        std::signal(SIGABRT, end) != SIG_ERR && std::signal(SIGALRM, end) != SIG_ERR;
    static_cast<void>(listening);
    input_ = input;
    alarm(kMaxSeconds);
  }
  ~UnderWay() {
    alarm(0);
    input_ = {};
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

 private:
  static void end(int signal) {
    std::signal(signal, SIG_DFL);
    const char* reason = signal == SIGALRM ? "took more than a minute" : "aborted";
    if (input_.bytes != nullptr) write_finding(input_, reason);
    std::raise(signal);
  }

  static constexpr unsigned kMaxSeconds = 60;
  static inline Input input_;
};

}  // namespace ladder
