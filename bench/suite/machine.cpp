// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/machine.h"

#include <fmt/core.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <sstream>

#include "ladder/core/threads.h"
#include "ladder/io/sha256.h"

namespace ladder::bench {
namespace {

constexpr const char* kUnknown = "unknown";

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) && !line.empty() ? line : kUnknown;
}

// "model name : AMD EPYC" in /proc/cpuinfo, "MemTotal: 8 kB" in /proc/meminfo.
std::string value_in(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string::npos) continue;
    const auto begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? kUnknown : line.substr(begin);
  }
  return kUnknown;
}

std::string output_of(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"),
                                                             ::pclose);
  std::string output;
  std::array<char, 256> part{};
  while (pipe && std::fgets(part.data(), part.size(), pipe.get()) != nullptr) output += part.data();
  while (output.ends_with('\n')) output.pop_back();
  return output;
}

std::string commit() {
  const std::string git = fmt::format("git -C '{}' ", LADDER_SOURCE_DIR);
  const auto hash = output_of(git + "rev-parse --short HEAD 2>/dev/null");
  if (hash.empty()) return kUnknown;
  const auto changes = output_of(git + "status --porcelain 2>/dev/null");
  return changes.empty() ? hash : hash + " dirty";
}

std::string isa() {
  const auto flags = fmt::format(" {} ", value_in("/proc/cpuinfo", "flags"));
  for (const char* name : {"amx_bf16", "avx512_bf16", "avx512f", "avx2"}) {
    if (flags.find(fmt::format(" {} ", name)) != std::string::npos) return name;
  }
  return kUnknown;
}

std::string gpus(const char* field) {
  auto text =
      output_of(fmt::format("nvidia-smi --query-gpu={} --format=csv,noheader 2>/dev/null", field));
  std::replace(text.begin(), text.end(), '\n', ',');
  return text.empty() ? "none" : text;
}

// "python 3.11.2; torch 2.11.0; ...": what the twins run on.
std::string python_versions_of(const std::string& python) {
  constexpr const char* kScript =
      "import platform; from importlib.metadata import distributions; "
      "found = {one.metadata['Name']: one.version for one in distributions()}; "
      "print('python ' + platform.python_version() + ''.join('; ' + name + ' ' + found[name] "
      "for name in ('torch', 'numpy', 'accelerate', 'transformers', 'lightning', 'jax', 'optax') "
      "if name in found))";
  const auto found = output_of(fmt::format("'{}' -c \"{}\" 2>/dev/null", python, kScript));
  return found.empty() ? kUnknown : found;
}

// Variables that change threads, memory or arithmetic.
std::string variables() {
  std::string found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto begins = [&](const char* name) { return text.starts_with(name); };
    constexpr std::array kNames = {"OMP_",  "KMP_",    "GOMP_", "MALLOC_", "LD_PRELOAD=", "MKL_",
                                   "ATEN_", "ONEDNN_", "DNNL_", "GLOO_",   "NCCL_",       "CUDA_"};
    if (std::none_of(kNames.begin(), kNames.end(), begins)) continue;
    found += (found.empty() ? "" : " ") + text;
  }
  return found.empty() ? "none" : found;
}

// "libtorch 2.11.0; cuda 13.0; ..."
std::string versions_of(const std::string& program) {
  std::istringstream lines(output_of(fmt::format("'{}' --version 2>/dev/null", program)));
  std::string line;
  std::getline(lines, line);  // its own name
  std::string versions;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string name;
    std::string version;
    std::getline(words >> name >> std::ws, version);
    versions += fmt::format("{}{} {}", versions.empty() ? "" : "; ", name, version);
  }
  return versions.empty() ? kUnknown : versions;
}

std::string sha256_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return kUnknown;
  const std::string content(std::istreambuf_iterator<char>(file), {});
  return sha256_hex(std::as_bytes(std::span(content)));
}

std::string memory_gib() {
  const auto kib = std::strtod(value_in("/proc/meminfo", "MemTotal").c_str(), nullptr);
  return fmt::format("{:.1f}", kib / (1024.0 * 1024.0));
}

std::string kernel() {
  utsname name{};
  if (::uname(&name) != 0) return kUnknown;
  return std::string(std::data(name.sysname)) + " " + std::data(name.release);
}

std::string cpu_limit() {
  const auto limit = cgroup_cpu_limit();
  return limit ? fmt::format("{}", *limit) : "none";
}

}  // namespace

std::int64_t steal_ticks() {
  constexpr int kColumnOfSteal = 7;
  std::istringstream columns(first_line_of("/proc/stat"));
  std::string name;
  columns >> name;
  std::int64_t ticks = 0;
  for (int i = 0; i <= kColumnOfSteal; ++i) columns >> ticks;
  return ticks;
}

double load_average() { return std::strtod(first_line_of("/proc/loadavg").c_str(), nullptr); }

std::vector<std::pair<std::string, std::string>> describe_machine(const std::string& data,
                                                                  const std::string& program,
                                                                  const std::string& python) {
  return {{"ladder_version", LADDER_VERSION},
          {"commit", commit()},
          {"compiler", fmt::format("{} {}", LADDER_COMPILER, __VERSION__)},
          {"build_type", LADDER_BUILD_TYPE},
          {"flags", LADDER_FLAGS},
          {"variables", variables()},
          {"cpu", value_in("/proc/cpuinfo", "model name")},
          {"isa", isa()},
          {"usable_cpus", fmt::format("{}", usable_cpus())},
          {"cgroup_cpu_limit", cpu_limit()},
          {"governor", first_line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")},
          {"memory_gib", memory_gib()},
          {"kernel", kernel()},
          {"gpu", gpus("name")},
          {"driver", gpus("driver_version")},
          {"versions", versions_of(program)},
          {"python_versions", python_versions_of(python)},
          {"load_before", fmt::format("{:.2f}", load_average())},
          {"steal_before", fmt::format("{}", steal_ticks())},
          {"data_sha256", sha256_of(data)}};
}

}  // namespace ladder::bench
