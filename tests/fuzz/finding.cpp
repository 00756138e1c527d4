// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/finding.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>

namespace ladder {
namespace {

constexpr unsigned kMostSeconds = 60;

// For the signal handler, which gets no arguments.
struct Input {
  const char* parser = nullptr;
  std::uint64_t seed = 0;
  std::int64_t number = 0;
  const Bytes* bytes = nullptr;
};
Input under_way;

// Calls only what a signal handler may call, and snprintf, which takes no memory for these.
void write_file(const Input& input, const char* reason) {
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

void end_by_signal(int signal) {
  std::signal(signal, SIG_DFL);
  if (under_way.bytes != nullptr) {
    write_file(under_way, signal == SIGALRM ? "took more than a minute" : "aborted");
  }
  std::raise(signal);
}

}  // namespace

void write_finding(const std::string& parser, std::uint64_t seed, std::int64_t number,
                   const Bytes& bytes, const std::string& reason) {
  write_file({parser.c_str(), seed, number, &bytes}, reason.c_str());
}

UnderWay::UnderWay(const std::string& parser, std::uint64_t seed, std::int64_t number,
                   const Bytes& bytes) {
  static const bool listening = std::signal(SIGABRT, end_by_signal) != SIG_ERR &&
                                std::signal(SIGALRM, end_by_signal) != SIG_ERR;
  static_cast<void>(listening);
  under_way = {parser.c_str(), seed, number, &bytes};
  alarm(kMostSeconds);
}

UnderWay::~UnderWay() {
  alarm(0);
  under_way = {};
}

}  // namespace ladder

// Sanitizers abort, so that the handler is called, and take no gibibytes for a claim of a file.
extern "C" const char* __asan_default_options() {
  return "abort_on_error=1:max_allocation_size_mb=256";
}
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }
