// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Version.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

// For loops whose sums stay in registers, so that the width of a vector is part of the source:
//
//     template <int kLanes>
//     [[gnu::always_inline]] inline void pass(const Args& args) { ... Vector<kLanes> ... }
//
//     void pass_plain(const Args& args) { pass<4>(args); }
//     LADDER_AVX2 void pass_avx2(const Args& args) { pass<8>(args); }
//     LADDER_AVX512 void pass_avx512(const Args& args) { pass<16>(args); }
//     ...
//     for_this_cpu(pass_plain, pass_avx2, pass_avx512)(args);
//
// A loop without such sums is plain C++ that the compiler vectorises: see simd.h.
#if defined(__x86_64__) && defined(__GNUC__)
#define LADDER_AVX2 [[gnu::target("arch=x86-64-v3")]]
#define LADDER_AVX512 [[gnu::target("arch=x86-64-v4")]]
#else
#define LADDER_AVX2
#define LADDER_AVX512
#endif

namespace ladder::kernels {

// The bits of a bfloat16, the upper half of a float. Loops over c10::BFloat16 are not vectorised.
using Bfloat16Bits = std::uint16_t;

[[gnu::always_inline]] inline float as_float(float number) { return number; }
[[gnu::always_inline]] inline float as_float(Bfloat16Bits bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Equals: c10::BFloat16(number), bit for bit; but NaN keeps its sign and payload, which must fit
// into a bfloat16, because a larger one would overflow: see coefficient().
template <typename T>
[[gnu::always_inline]] inline T rounded(float number) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return number;
  } else {  // to the nearest, ties to even
    const auto bits = std::bit_cast<std::uint32_t>(number);
    return static_cast<T>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }
}

// A number for a loop that rounds its results; NaN loses its payload. So a NaN among the results
// has a payload that fits into a bfloat16, and rounded() needs no test.
inline float coefficient(double number) {
  return std::isnan(number) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(number);
}

// The version for this processor. The environment variable ATEN_CPU_CAPABILITY (avx512, avx2,
// default) chooses another one, as it does for the operations of LibTorch.
template <typename Function>
Function* for_this_cpu(Function* plain, Function* avx2, Function* avx512) {
  static const std::string capability = at::get_cpu_capability();
  if (capability == "AVX512") return avx512;
  return capability == "AVX2" ? avx2 : plain;
}

template <typename T, int kLanes>
struct VectorOf {
  using Type [[gnu::vector_size(sizeof(T) * kLanes)]] = T;
};

// kLanes floats in a register, or in several; +, * and < work lane by lane.
template <int kLanes>
using Vector = typename VectorOf<float, kLanes>::Type;

// kCount of them. An alias, because g++ warns of V v[kCount] in a template.
template <int kLanes, int kCount>
using Vectors = Vector<kLanes>[static_cast<std::size_t>(kCount)];

template <typename V>
inline constexpr int kLanesOf = sizeof(V) / sizeof(float);

template <typename V>
using WordsOf = typename VectorOf<std::uint32_t, kLanesOf<V>>::Type;

// Reads a Vector from any address; bfloat16s become floats. By reference: how a function returns a
// vector depends on the instructions that its caller is compiled for.
template <typename V, typename T>
[[gnu::always_inline]] inline void load(V& vector, const T* from) {
  typename VectorOf<T, kLanesOf<V>>::Type numbers;
  std::memcpy(&numbers, from, sizeof numbers);
  if constexpr (sizeof(T) == sizeof(float)) {
    vector = numbers;
  } else {
    const auto bits = __builtin_convertvector(numbers, WordsOf<V>) << 16;
    std::memcpy(&vector, &bits, sizeof vector);
  }
}

// Writes a Vector to any address, as floats or as bfloat16s; see rounded().
template <typename V, typename T>
[[gnu::always_inline]] inline void store(T* to, const V& vector) {
  typename VectorOf<T, kLanesOf<V>>::Type numbers;
  if constexpr (sizeof(T) == sizeof(float)) {
    numbers = vector;
  } else {
    WordsOf<V> bits;
    std::memcpy(&bits, &vector, sizeof bits);
    numbers = __builtin_convertvector((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16,
                                      typename VectorOf<T, kLanesOf<V>>::Type);
  }
  std::memcpy(to, &numbers, sizeof numbers);
}

}  // namespace ladder::kernels
