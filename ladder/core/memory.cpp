// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/memory.h"

#include <sys/resource.h>

#include <fstream>
#include <optional>
#include <string>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace ladder {

void tune_allocator() {
#ifdef __GLIBC__
  constexpr int kNever = -1;  // read as the largest size_t
  if (mallopt(M_MMAP_THRESHOLD, 1 << 30) == 0) {
    mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the maximum before glibc 2.35
  }
  mallopt(M_TRIM_THRESHOLD, kNever);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

namespace {

// The number after a word of a file such as /proc/self/status.
std::optional<std::int64_t> number_after(const char* word, const char* path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  for (std::string found; file >> found;) {
    if (found == word && file >> number) return number;
  }
  return std::nullopt;
}

}  // namespace

std::int64_t read_bytes() { return number_after("rchar:", "/proc/self/io").value_or(0); }

std::int64_t peak_rss_bytes() {
  if (const auto kibibytes = number_after("VmHWM:", "/proc/self/status")) return *kibibytes * 1024;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace ladder
