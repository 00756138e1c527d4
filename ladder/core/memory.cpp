// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/memory.h"

#include <sys/resource.h>

#include <fstream>
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

std::int64_t peak_rss_bytes() {
  std::ifstream status("/proc/self/status");
  std::int64_t kibibytes = 0;
  for (std::string word; status >> word;) {
    if (word == "VmHWM:" && status >> kibibytes) return kibibytes * 1024;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace ladder
