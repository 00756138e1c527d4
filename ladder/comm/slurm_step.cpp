// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/slurm_step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ladder/core/error.h"

namespace ladder {
namespace {

// SLURM's reserved step ids (0xfffffff0 and up) stand for batch scripts and interactive shells.
bool is_slurm_step(const Variables& variables) {
  constexpr std::int64_t kFirstReserved = 0xfffffff0;
  const auto step = variables.number(variables.first_set({"SLURM_STEP_ID", "SLURM_STEPID"}), 0);
  return step && *step < kFirstReserved;
}

bool is_slurm_shell(const Variables& variables) {
  constexpr std::array<std::string_view, 8> kShells = {"bash", "csh", "dash", "fish",
                                                       "ksh",  "sh",  "tcsh", "zsh"};
  const std::string job = variables.text("SLURM_JOB_NAME").value_or("");
  return variables.has("SLURM_PTY_PORT") &&
         std::find(kShells.begin(), kShells.end(), job) != kShells.end();
}

// Tasks on machine `node`, from a list such as "2(x3),1": three machines with two, one with one.
std::optional<int> tasks_on_node(std::string_view list, std::int64_t node) {
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), item.size() + 1));
    const auto times_at = item.find("(x");
    const bool repeated = times_at != std::string_view::npos;
    if (repeated && item.back() != ')') return std::nullopt;
    const auto tasks = whole_number(item.substr(0, times_at));
    const auto times = repeated
                           ? whole_number(item.substr(times_at + 2, item.size() - times_at - 3))
                           : std::optional<std::int64_t>(1);
    if (!tasks || !times || *tasks < 1 || *tasks > INT32_MAX || *times < 1) return std::nullopt;
    if (node < *times) return static_cast<int>(*tasks);
    node -= *times;
  }
  return std::nullopt;
}

std::optional<int> slurm_local_size(const Variables& variables) {
  const std::string name =
      variables.first_set({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (name.empty()) return std::nullopt;
  const int node = variables.integer("SLURM_NODEID", 0).value_or(0);
  const std::string list = variables.text(name).value_or("");
  const auto tasks = tasks_on_node(list, node);
  if (!tasks) {
    throw UsageError::malformed(
        name, fmt::format("tasks of machines 0 to {} at least, such as 2(x3),1", node), list,
        "start the program with srun, which sets it");
  }
  return tasks;
}

// "host[5-9,12]-ib,other" is host5-ib and more.
std::string first_host(std::string_view list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const auto close = list.find(']', i);
    const std::string_view range = list.substr(i + 1, close - i - 1);
    const std::string_view first = range.substr(0, range.find_first_of("-,"));
    if (close == std::string_view::npos || !whole_number(first)) return "";
    host += first;
    i = close;
  }
  return host;
}

}  // namespace

std::optional<Place> read_srun(const Variables& variables) {
  if (!is_slurm_step(variables)) return std::nullopt;
  const std::string size_name = variables.first_set({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  const auto rank = variables.integer("SLURM_PROCID", 0);
  const auto world_size = variables.integer(size_name, 1);
  const auto local_rank = variables.integer("SLURM_LOCALID", 0);
  if (!rank || !world_size || !local_rank) {
    std::vector<std::string> missing;
    if (!world_size) missing.emplace_back("SLURM_STEP_NUM_TASKS");
    if (!rank) missing.emplace_back("SLURM_PROCID");
    if (!local_rank) missing.emplace_back("SLURM_LOCALID");
    throw UsageError::missing(fmt::format("{}", fmt::join(missing, ", ")),
                              "values beside SLURM_STEP_ID",
                              "start the program with srun, or: unset SLURM_STEP_ID SLURM_STEPID");
  }
  return Place{.launcher = "srun",
               .rank = {"SLURM_PROCID", *rank},
               .world_size = {size_name, *world_size},
               .local_rank = local_rank,
               .local_world_size = slurm_local_size(variables),
               .local_rank_name = "SLURM_LOCALID",
               .local_world_size_name = "the number of tasks on this machine",
               .without = "env -u SLURM_STEP_ID -u SLURM_STEPID",
               .in_shell = is_slurm_shell(variables)};
}

Sourced<std::string> slurm_host(const Variables& variables, const std::string& program) {
  const std::string name =
      variables.first_set({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"});
  const std::string list = variables.text(name).value_or("");
  const std::string host = first_host(list);
  if (host.empty()) {
    throw UsageError::malformed(
        name.empty() ? "SLURM_STEP_NODELIST" : name, "a list of hosts such as host[5-9,12]", list,
        fmt::format("name the host of rank 0: MASTER_ADDR=HOST srun {}", program));
  }
  return {name, host};
}

Sourced<int> slurm_port(const Variables& variables, const std::string& program) {
  constexpr int kFirstPort = 15000;
  constexpr std::int64_t kPorts = 10000;
  const std::string name = variables.first_set({"SLURM_JOB_ID", "SLURM_JOBID"});
  const auto job = variables.number(name, 0);
  if (!job) {
    throw UsageError::missing("SLURM_JOB_ID", "a number, for the port of the store",
                              fmt::format("MASTER_PORT=29500 srun {}", program));
  }
  return {name, kFirstPort + static_cast<int>(*job % kPorts)};
}

}  // namespace ladder
