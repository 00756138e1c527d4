// SPDX-License-Identifier: Apache-2.0
#include "mnist/named_files.h"

#include <fmt/core.h>
#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <system_error>

#include "ladder/core/error.h"
#include "ladder/core/text.h"
#include "ladder/io/atomic_file.h"

namespace mnist {
namespace {

namespace fs = std::filesystem;
using Role = ladder::PathRole;

fs::path whole(const std::string& path) {
  std::error_code ignored;
  return fs::weakly_canonical(fs::absolute(ladder::behind_links(path), ignored), ignored);
}

bool are_same(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored) || whole(a) == whole(b);
}

// Each further rank N writes a.rankN.json beside a.json.
std::string without_rank(const std::string& path) {
  static const std::regex rank(R"(\.rank[0-9]+(\.[^./]*)?$)");
  return std::regex_replace(path, rank, "$1");
}

bool are_of_run(const NamedFile& folder, const std::string& name) {
  const auto patterns = ladder::split(folder.files, '|');
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), name.c_str(), FNM_PATHNAME | FNM_LEADING_DIR) == 0;
  });
}

// A data set may consist of links.
bool is_in(const std::string& path, const NamedFile& folder) {
  const auto inside = whole(path).lexically_relative(whole(folder.path)).string();
  if (!inside.starts_with("..") && inside != "." && are_of_run(folder, inside)) return true;
  std::error_code error;
  const fs::directory_iterator entries(folder.path, error);
  return std::any_of(begin(entries), end(entries), [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    return are_of_run(folder, entry.path().filename()) && fs::equivalent(path, entry, ignored);
  });
}

// What is wrong with writing `own`, or "".
std::string problem(const NamedFile& own, const NamedFile& other) {
  if (other.role == Role::kFolder) {
    return is_in(own.path, other) ? "is a file of the run in " + other.flag : "";
  }
  if (other.role == Role::kRead) {
    const bool goes_on = own.flag == "--save" && other.flag == "--load";
    const bool reads = !goes_on && are_same(own.path, other.path);
    return reads ? "names the file that is read as " + other.flag : "";
  }
  const bool writes = are_same(own.path, other.path) ||
                      are_same(own.path, without_rank(other.path)) ||
                      are_same(without_rank(own.path), other.path);
  return writes ? "names the same file as " + other.flag : "";
}

}  // namespace

void require_distinct_files(std::vector<NamedFile> files) {
  std::erase_if(files, [](const NamedFile& file) {
    const bool is_word = file.role == Role::kFolder && (file.path == "auto" || file.path == "true");
    return file.path.empty() || is_word;
  });
  files.insert(files.begin(), {"standard output", "/dev/stdout", Role::kWritten});
  for (auto own = files.begin(); own != files.end(); ++own) {
    // Devices and pipes keep nothing that could be lost.
    if (own->role != Role::kWritten || ladder::is_something_else(own->path)) continue;
    for (auto other = files.begin(); other != files.end(); ++other) {
      if (other == own || (other->role == Role::kWritten && other > own)) continue;
      const auto got = problem(*own, *other);
      if (got.empty()) continue;
      throw ladder::UsageError::conflict(fmt::format("{} {}", own->flag, own->path), got,
                                         "name another file");
    }
  }
}

}  // namespace mnist
