// SPDX-License-Identifier: Apache-2.0
// The peak arithmetic of the CPU. Compiled so that a * b + c is one instruction.
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "bench/suite/machine.h"
#include "ladder/core/clock.h"

namespace ladder::bench {
namespace {

constexpr std::size_t kChains = 16;  // independent, so that latency is hidden
constexpr std::int64_t kRounds = 20'000'000;
constexpr int kTries = 6;

template <typename Vector>
inline __attribute__((always_inline)) float chains(std::int64_t rounds) {
  std::array<Vector, kChains> sums{};  // begun differently, or they are computed as one
  for (std::size_t i = 0; i < kChains; ++i) sums[i] += static_cast<float>(i);
  const Vector factor = Vector{} + 0.999F;
  const Vector addend = Vector{} + 0.001F;
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (auto& sum : sums) sum = sum * factor + addend;
  }
  Vector total{};
  for (const auto& sum : sums) total += sum;
  return total[0];
}

using Four = float __attribute__((vector_size(16)));
float work_of_four(std::int64_t rounds) { return chains<Four>(rounds); }

#ifdef __x86_64__
using Eight = float __attribute__((vector_size(32)));
using Sixteen = float __attribute__((vector_size(64)));
__attribute__((target("avx2,fma"))) float work_of_eight(std::int64_t rounds) {
  return chains<Eight>(rounds);
}
__attribute__((target("avx512f"))) float work_of_sixteen(std::int64_t rounds) {
  return chains<Sixteen>(rounds);
}
#endif

// 32 products of bfloat16 per instruction, added up in 16 floats.
#ifdef __x86_64__
__attribute__((target("avx512f,avx512bf16"))) float work_of_bfloat16(std::int64_t rounds) {
  using Pairs = short __attribute__((vector_size(64)));
  constexpr short kSmall = 0x3A83;  // 0.001
  const Pairs pairs = Pairs{} + kSmall;
  __m512bh factor;
  std::memcpy(&factor, &pairs, sizeof factor);
  std::array<Sixteen, kChains> sums{};
  for (std::size_t i = 0; i < kChains; ++i) sums[i] += static_cast<float>(i);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (auto& sum : sums) sum = _mm512_dpbf16_ps(sum, factor, factor);
  }
  Sixteen total{};
  for (const auto& sum : sums) total += sum;
  return total[0];
}
#endif

struct Work {
  float (*function)(std::int64_t rounds);
  double lanes;  // products per instruction
};

Work widest() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return {work_of_sixteen, 16.0};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {work_of_eight, 8.0};
#endif
  return {work_of_four, 4.0};
}

Work widest_of_bfloat16() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512bf16")) return {work_of_bfloat16, 32.0};
#endif
  return widest();
}

double measure(const Work& work, int threads) {
  double best = 0.0;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    std::vector<float> results(static_cast<std::size_t>(threads));
    const double started = steady_seconds();
    {
      std::vector<std::jthread> workers;
      for (auto& result : results) {
        workers.emplace_back([&result, &work] { result = work.function(kRounds); });
      }
    }
    const double seconds = steady_seconds() - started;
    const double flops = 2.0 * work.lanes * static_cast<double>(kChains) *
                         static_cast<double>(kRounds) * static_cast<double>(threads);
    if (results.front() > 0.0F) best = std::max(best, flops / seconds / 1e9);
  }
  return best;
}

}  // namespace

// If all cores together are hardly faster than one, another program had one: measure again.
Peaks measure_peaks(int threads) {
  constexpr int kLooks = 5;
  Peaks best;
  for (int look = 0; look < kLooks; ++look) {
    best.one_thread = std::max(best.one_thread, measure(widest(), 1));
    best.all = std::max(best.all, measure(widest(), threads));
    best.bfloat16 = std::max(best.bfloat16, measure(widest_of_bfloat16(), threads));
    if (threads == 1 || best.all > 1.5 * best.one_thread) break;
  }
  return best;
}

}  // namespace ladder::bench
