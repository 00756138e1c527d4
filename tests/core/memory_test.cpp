// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <vector>

namespace ladder {
namespace {

constexpr std::size_t kSize = std::size_t{192} << 20;

// Allocates, touches and frees kSize bytes; returns the pages the kernel had to supply.
long faults_of_one_use() {
  rusage before{};
  rusage after{};
  getrusage(RUSAGE_THREAD, &before);
  {
    const std::unique_ptr<volatile char, void (*)(volatile char*)> memory(
        static_cast<volatile char*>(std::malloc(kSize)),
        [](volatile char* p) { std::free(const_cast<char*>(p)); });
    for (std::size_t i = 0; i < kSize; i += 4096) memory.get()[i] = 1;
  }
  getrusage(RUSAGE_THREAD, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST(TuneAllocator, KeepsFreedMemoryForTheNextUse) {
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "malloc is not glibc's";
#endif
  tune_allocator();
  faults_of_one_use();
  EXPECT_LT(faults_of_one_use(), 16);  // a fresh use takes 49152, or 96 if pages are huge
}

TEST(PeakRss, CountsMemoryThatWasTouchedAndFreed) {
  faults_of_one_use();
  EXPECT_GE(peak_rss_bytes(), std::int64_t{kSize});
}

TEST(ReadBytes, CountsFiles) {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::vector<char> bytes(100'000);
  const auto before = read_bytes();
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const auto read = read_bytes() - before;
  EXPECT_GE(read, 100'000);
  EXPECT_LT(read, 120'000) << "and little else";
}

TEST(PeakRss, IsOfThisProcessAndInBytes) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  // The kernel sums per-CPU counters lazily, so the two may differ by some pages.
  EXPECT_LE(peak_rss_bytes(), (std::int64_t{usage.ru_maxrss} + 1024) * 1024);
}

}  // namespace
}  // namespace ladder
