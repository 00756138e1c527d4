// SPDX-License-Identifier: Apache-2.0
#include "ladder/amp/precision.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/captured_stream.h"

namespace ladder {
namespace {

struct Choice {
  Precision precision;
  std::string log;
};

Choice choice(std::optional<Precision> requested, const torch::Device& device = torch::kCPU) {
  const CapturedStream stream;
  const auto precision = choose_precision(requested, device, Log({.stream = stream.get()}));
  return {precision, stream.text()};
}

// What the kernel says that this CPU can do: on x86 "flags", on ARM "Features".
std::set<std::string> cpu_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::set<std::string> flags;
    for (std::string word; words >> word;) flags.insert(word);
    return flags;
  }
  return {};
}

bool cpu_has_one_of(const std::vector<std::string>& names) {
  const auto flags = cpu_flags();
  for (const auto& name : names) {
    if (flags.contains(name)) return true;
  }
  return false;
}

bool cpu_has_bf16() { return cpu_has_one_of({"avx512_bf16", "amx_bf16", "bf16"}); }
bool cpu_has_fp16() { return cpu_has_one_of({"avx512_fp16", "amx_fp16", "asimdhp"}); }

std::string emulated(const std::string& name) {
  return "precision: " + name + " is emulated: this CPU has no instructions for it, so " + name +
         " is correct and slow; fp32 is faster" + (cpu_has_bf16() ? ", bf16 the fastest\n" : "\n");
}

TEST(Precision, HasNamesAndDtypes) {
  EXPECT_EQ(name_of(Precision::kFp32), "fp32");
  EXPECT_EQ(name_of(Precision::kBf16), "bf16");
  EXPECT_EQ(name_of(Precision::kFp16), "fp16");
  EXPECT_EQ(dtype_of(Precision::kFp32), torch::kFloat32);
  EXPECT_EQ(dtype_of(Precision::kBf16), torch::kBFloat16);
  EXPECT_EQ(dtype_of(Precision::kFp16), torch::kFloat16);
}

TEST(Precision, IsThatOfTheDeviceUnlessAskedFor) {
  EXPECT_EQ(choice(std::nullopt).precision, Precision::kBf16);
  EXPECT_EQ(choice(std::nullopt, torch::kCUDA).precision, Precision::kFp16);
  for (const auto precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    EXPECT_EQ(choice(precision).precision, precision);
    EXPECT_EQ(choice(precision, torch::kCUDA).precision, precision);
  }
}

TEST(Precision, SaysInOneLineThatTheCpuEmulatesIt) {
  EXPECT_EQ(choice(Precision::kFp32).log, "");
  EXPECT_EQ(choice(Precision::kBf16).log, cpu_has_bf16() ? "" : emulated("bf16"));
  EXPECT_EQ(choice(std::nullopt).log, choice(Precision::kBf16).log);
  EXPECT_EQ(choice(Precision::kFp16).log, cpu_has_fp16() ? "" : emulated("fp16"));
}

TEST(Precision, SaysNothingAboutAGpu) {
  for (const auto precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    EXPECT_EQ(choice(precision, torch::kCUDA).log, "");
  }
}

}  // namespace
}  // namespace ladder
