// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/gpus.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/core/text.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

// CUDA reads an index as strtoul does: "1gpu" is 1.
bool is_index_below(int present, std::string_view entry, int& index) {
  entry.remove_prefix(std::min(entry.find_first_not_of(" +"), entry.size()));
  const auto read = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  return read.ec == std::errc() && index >= 0 && index < present;
}

// The entries in force, sorted, in one spelling per GPU.
std::vector<std::string> selected(std::string_view list, int present) {
  const bool by_name = list.starts_with("GPU-") || list.starts_with("MIG-");
  std::vector<std::string> names;
  for (const auto& entry : split(list, ',')) {
    int index = 0;
    const bool valid =
        by_name ? entry.starts_with(list.substr(0, 4)) : is_index_below(present, entry, index);
    if (!valid) break;
    names.push_back(by_name ? entry : std::to_string(index));
  }
  std::sort(names.begin(), names.end());
  return names;
}

int count_device_files(const std::string& dev) {
  constexpr std::string_view kPrefix = "nvidia";
  int nvidia = 0;
  bool windows = false;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dev, ignored)) {
    const std::string name = entry.path().filename().string();
    windows = windows || name == "dxg";
    if (name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
        name.find_first_not_of("0123456789", kPrefix.size()) == std::string::npos) {
      ++nvidia;
    }
  }
  return nvidia == 0 && windows ? 1 : nvidia;
}

int count_visible(int present) {
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) return present;
  const auto names = selected(list, present);
  if (std::adjacent_find(names.begin(), names.end()) != names.end()) return 0;
  const int most = std::string_view(list).starts_with("MIG-") ? std::min(present, 1) : present;
  return std::min(static_cast<int>(names.size()), most);
}

}  // namespace

bool has_cuda_runtime() { return ::dlsym(RTLD_DEFAULT, "cudaGetDeviceCount") != nullptr; }

int machine_gpu_count(const GpuSearch& search) {
  return search.has_cuda ? count_device_files(search.dev) : 0;
}

int visible_gpu_count(const GpuSearch& search) { return count_visible(machine_gpu_count(search)); }

std::string no_gpu_reason(const GpuSearch& search) {
  return count_device_files(search.dev) == 0 ? "this machine has no GPU"
                                             : "this LibTorch has no CUDA";
}

std::string missing_gpus(int found, const GpuSearch& search) {
  const int visible = count_visible(count_device_files(search.dev));
  if (found >= visible) return "";
  return fmt::format(
      "{} visible, but {}", visible == 1 ? "1 GPU is" : fmt::format("{} GPUs are", visible),
      search.has_cuda ? fmt::format("CUDA finds {}", found) : "this LibTorch has no CUDA");
}

void require_gpus_of_launcher(std::string_view where, std::string_view list) {
  const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
  // Slurm sets the rank in batch scripts too, and the number of tasks in steps alone.
  const bool launched =
      environment_variable("ACCELERATE_MIXED_PRECISION") ||
      std::ranges::any_of(kLauncherVariables, [](const auto& names) {
        return environment_variable(names.rank) && environment_variable(names.world_size);
      });
  if (variable == nullptr || !launched) return;
  std::string visible = variable;
  std::erase(visible, ' ');
  if (visible == list) return;
  throw UsageError::conflict(
      where, fmt::format("{} contradicts CUDA_VISIBLE_DEVICES={} of the launcher", list, visible),
      fmt::format("omit {}, or start the launcher with CUDA_VISIBLE_DEVICES={}", where, list));
}

}  // namespace ladder
