// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/replicate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <ranges>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/parallel/distributed_data_parallel.h"

namespace ladder {
namespace {

std::shared_ptr<ReplicatedModel> averaged(std::shared_ptr<Model> model, ProcessGroup group,
                                          const ReplicateOptions& how) {
  return std::make_shared<DistributedDataParallel>(
      std::move(model), std::move(group),
      DistributedDataParallelOptions{.reducer = {.check_replicas = how.check_replicas}});
}

std::map<std::string, MakeReplicated>& table() {
  static std::map<std::string, MakeReplicated> rows = {{"fast", averaged}};
  return rows;
}

}  // namespace

std::shared_ptr<ReplicatedModel> replicate(std::shared_ptr<Model> model, ProcessGroup group,
                                           const ReplicateOptions& how) {
  const auto row = table().find(how.sums);
  if (row == table().end()) {
    throw UsageError::malformed(
        "sums", fmt::format("one of {}", fmt::join(sum_names() | std::views::keys, ", ")), how.sums,
        "link ladder::exact for exact sums, ladder::ladder for all");
  }
  return row->second(std::move(model), std::move(group), how);
}

bool add_sums(const std::string& name, const std::string& help, MakeReplicated make) {
  sum_names().emplace_back(name, help);
  return table().emplace(name, make).second;
}

}  // namespace ladder
