// SPDX-License-Identifier: Apache-2.0
#include "ladder/amp/precision.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>

namespace ladder {
namespace {

// Whether this CPU has instructions for the dtype, by the kernel's list, whose lines begin with
// "flags" on x86 and with "Features" on ARM. LibTorch reports them only from 2.11 on.
bool cpu_computes_in(Precision precision) {
  static constexpr std::array<const char*, 3> kBf16 = {" avx512_bf16 ", " amx_bf16 ", " bf16 "};
  static constexpr std::array<const char*, 3> kFp16 = {" avx512_fp16 ", " amx_fp16 ", " asimdhp "};
  const auto& names = precision == Precision::kBf16 ? kBf16 : kFp16;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    line += ' ';
    return std::any_of(names.begin(), names.end(),
                       [&](const char* name) { return line.find(name) != std::string::npos; });
  }
  return false;
}

}  // namespace

std::string name_of(Precision precision) {
  if (precision == Precision::kBf16) return "bf16";
  return precision == Precision::kFp16 ? "fp16" : "fp32";
}

torch::ScalarType dtype_of(Precision precision) {
  if (precision == Precision::kBf16) return torch::kBFloat16;
  return precision == Precision::kFp16 ? torch::kFloat16 : torch::kFloat32;
}

Precision choose_precision(std::optional<Precision> requested, const torch::Device& device,
                           const Log& log) {
  const auto precision = requested.value_or(device.is_cpu() ? Precision::kBf16 : Precision::kFp16);
  if (device.is_cpu() && precision != Precision::kFp32 && !cpu_computes_in(precision)) {
    log.info(fmt::format(
        "precision: {0} is emulated: this CPU has no instructions for it, so {0} is correct and "
        "slow; fp32 is faster{1}",
        name_of(precision), cpu_computes_in(Precision::kBf16) ? ", bf16 the fastest" : ""));
  }
  return precision;
}

}  // namespace ladder
