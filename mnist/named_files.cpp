// SPDX-License-Identifier: Apache-2.0
#include "mnist/named_files.h"

#include <fmt/core.h>

#include <filesystem>
#include <regex>
#include <system_error>

#include "ladder/core/error.h"
#include "ladder/io/atomic_file.h"
#include "mnist/files.h"

namespace mnist {
namespace {

namespace fs = std::filesystem;
using ladder::UsageError;

// Devices and pipes keep nothing that could be lost.
bool are_same(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty() || ladder::is_something_else(a)) return false;
  std::error_code ignored;
  if (fs::equivalent(a, b, ignored)) return true;
  const auto whole = [&](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(ladder::behind_links(path), ignored), ignored);
  };
  return whole(a) == whole(b);
}

std::string without_rank(const std::string& path) {
  static const std::regex rank(R"(\.rank[0-9]+(\.[^./]*)$)");
  return std::regex_replace(path, rank, "$1");
}

bool are_same(const NamedFile& a, const NamedFile& b) {
  return are_same(a.path, b.path) || (a.of_ranks && are_same(a.path, without_rank(b.path))) ||
         (b.of_ranks && are_same(without_rank(a.path), b.path));
}

}  // namespace

void require_distinct_files(const std::vector<NamedFile>& outputs,
                            const std::vector<NamedFile>& inputs, const std::string& data_root) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& [flag, path, of_ranks] = outputs[i];
    const auto refuse = [&](const std::string& got) {
      throw UsageError::conflict(fmt::format("{} {}", flag, path), got, "name another file");
    };
    for (std::size_t j = 0; j < i; ++j) {
      if (are_same(outputs[i], outputs[j])) refuse("names the same file as " + outputs[j].flag);
    }
    for (const auto& input : inputs) {
      const bool goes_on = flag == "--save" && input.flag == "--load";  // replaced when it is whole
      if (!goes_on && are_same(path, input.path)) {
        refuse("names the file that is read as " + input.flag);
      }
    }
    for (const auto split : {Split::kTrain, Split::kTest}) {
      for (const char* kind : {"images", "labels"}) {
        for (const auto& file : paths_of(data_root, split, kind)) {
          if (are_same(path, file)) refuse("is a file of --data-root");
        }
      }
    }
  }
}

}  // namespace mnist
