// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Version.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "ladder/kernels/bfloat16.h"

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
