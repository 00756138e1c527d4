// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/gpus.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

namespace ladder {
namespace {

namespace fs = std::filesystem;

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

bool is_nvidia_gpu(std::string_view name) {
  constexpr std::string_view kPrefix = "nvidia";
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  return !name.empty() && std::all_of(name.begin(), name.end(), is_digit);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

std::vector<std::string> entries_of(std::string_view list) {
  std::vector<std::string> entries;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    entries.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return entries;
}

// CUDA reads an index as strtoul does: "1gpu" is 1.
bool is_index_below(int present, std::string_view entry, int& index) {
  entry.remove_prefix(std::min(entry.find_first_not_of(" +"), entry.size()));
  const auto read = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  return read.ec == std::errc() && index >= 0 && index < present;
}

// The entries in force, each as the one name that all its spellings share.
std::vector<std::string> chosen(std::string_view list, int present) {
  const std::string prefix(list.starts_with("GPU-") || list.starts_with("MIG-") ? list.substr(0, 4)
                                                                                : "");
  std::vector<std::string> names;
  for (const auto& entry : entries_of(list)) {
    int index = 0;
    const bool valid =
        prefix.empty() ? is_index_below(present, entry, index) : entry.starts_with(prefix);
    if (!valid) break;
    names.push_back(prefix.empty() ? std::to_string(index) : entry);
  }
  return names;
}

bool has_duplicates(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return std::adjacent_find(names.begin(), names.end()) != names.end();
}

}  // namespace

int machine_gpu_count(const std::string& dev) {
  const auto names = names_in(dev);
  const auto nvidia = std::count_if(names.begin(), names.end(), is_nvidia_gpu);
  if (nvidia > 0) return static_cast<int>(nvidia);
  return std::find(names.begin(), names.end(), "dxg") == names.end() ? 0 : 1;
}

int visible_gpu_count(const std::string& dev) {
  const int present = machine_gpu_count(dev);
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) return present;
  const auto names = chosen(list, present);
  if (has_duplicates(names)) return 0;
  const int most = std::string_view(list).starts_with("MIG-") ? std::min(present, 1) : present;
  return std::min(static_cast<int>(names.size()), most);
}

}  // namespace ladder
