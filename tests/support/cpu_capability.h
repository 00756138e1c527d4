// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>

namespace ladder {

// The environment variable that chooses the instructions of LibTorch's operations and of ours.
inline std::string cpu_capability() {
  const char* value = std::getenv("ATEN_CPU_CAPABILITY");
  return value == nullptr ? "" : value;
}

// Whether the processor has what the variable demands. LibTorch does not ask.
inline bool has_cpu_capability() {
#if defined(__x86_64__)
  if (cpu_capability() == "avx512") return __builtin_cpu_supports("avx512bw");
  if (cpu_capability() == "avx2") return __builtin_cpu_supports("avx2");
  return true;
#else
  return !cpu_capability().starts_with("avx");
#endif
}

}  // namespace ladder
