// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/launch_variables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/text.h"

namespace ladder {

std::optional<std::string> Variables::text(const std::string& name) const {
  auto value = (*lookup_)(name);
  if (value && value->empty()) value.reset();
  return value;
}

std::optional<std::int64_t> Variables::number(const std::string& name, std::int64_t minimum,
                                              std::int64_t maximum) const {
  const auto value_text = text(name);
  if (!value_text) return std::nullopt;
  const auto value = parse_number<std::int64_t>(*value_text);
  if (!value || *value < minimum || *value > maximum) {
    throw UsageError::malformed(name, fmt::format("a whole number, {} to {}", minimum, maximum),
                                *value_text, fmt::format("set {0} to one, or: unset {0}", name));
  }
  return value;
}

std::string Variables::first_set(std::initializer_list<const char*> names) const {
  const auto* const found =
      std::find_if(names.begin(), names.end(), [this](const char* name) { return has(name); });
  return found == names.end() ? "" : *found;
}

namespace {

// Tasks on machine `node`, from a list such as "2(x3),1": three machines with two, one with one.
std::optional<int> tasks_on_node(std::string_view list, std::int64_t node) {
  for (const std::string_view item : split(list, ',')) {
    const auto times_at = item.find("(x");
    const bool repeated = times_at != std::string_view::npos;
    if (repeated && item.back() != ')') return std::nullopt;
    const auto tasks = parse_number<int>(item.substr(0, times_at));
    const auto times =
        repeated ? parse_number<std::int64_t>(item.substr(times_at + 2, item.size() - times_at - 3))
                 : std::optional<std::int64_t>(1);
    if (!tasks || !times || *tasks < 1 || *times < 1) return std::nullopt;
    if (node < *times) return tasks;
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
        name, fmt::format("task counts of machines 0 to {}, such as 2(x3),1", node), list,
        "start the program with srun, which sets it");
  }
  return tasks;
}

// Unset outside srun.
std::optional<std::int64_t> slurm_step(const Variables& variables) {
  return variables.number(variables.first_set({"SLURM_STEP_ID", "SLURM_STEPID"}), 0);
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
    if (close == std::string_view::npos || !parse_number<std::int64_t>(first)) return "";
    host += first;
    i = close;
  }
  return host;
}

}  // namespace

std::optional<RankPlacement> read_srun(const Variables& variables) {
  constexpr std::int64_t kFirstReserved = 0xfffffff0;  // for batch scripts and interactive shells
  const auto step = slurm_step(variables);
  if (!step || *step >= kFirstReserved) return std::nullopt;
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
                              "a number together with SLURM_STEP_ID",
                              "start the program with srun, or: unset SLURM_STEP_ID SLURM_STEPID");
  }
  constexpr std::array<std::string_view, 8> kShells = {"bash", "csh", "dash", "fish",
                                                       "ksh",  "sh",  "tcsh", "zsh"};
  const bool is_shell = std::find(kShells.begin(), kShells.end(),
                                  variables.text("SLURM_JOB_NAME").value_or("")) != kShells.end();
  return RankPlacement{.launcher = "srun",
                       .rank = {"SLURM_PROCID", *rank},
                       .world_size = {size_name, *world_size},
                       .local_rank = local_rank,
                       .local_world_size = slurm_local_size(variables),
                       .local_rank_name = "SLURM_LOCALID",
                       .local_world_size_name = "the number of tasks on this machine",
                       .without = "env -u SLURM_STEP_ID -u SLURM_STEPID",
                       .in_shell = is_shell && variables.has("SLURM_PTY_PORT")};
}

Sourced<std::string> slurm_host(const Variables& variables, const std::string& program) {
  if (variables.text("SLURM_DISTRIBUTION").value_or("").starts_with("arbitrary")) {
    throw UsageError::missing(
        "MASTER_ADDR",
        "the host of rank 0, as SLURM_DISTRIBUTION=arbitrary may start it on any host of the step",
        fmt::format("MASTER_ADDR=HOST srun -m arbitrary {}, or omit -m arbitrary", program));
  }
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
  constexpr std::int64_t kStepDistance = 997;  // jobs that run together often have close numbers
  const std::string name = variables.first_set({"SLURM_JOB_ID", "SLURM_JOBID"});
  const auto job = variables.number(name, 0);
  if (!job) {
    throw UsageError::missing("SLURM_JOB_ID", "a number, for the port of the store",
                              fmt::format("MASTER_PORT=29500 srun {}", program));
  }
  const std::int64_t step = slurm_step(variables).value_or(0);
  const std::int64_t offset = (*job % kPorts + step % kPorts * kStepDistance) % kPorts;
  return {fmt::format("{}, SLURM_STEP_ID", name), kFirstPort + static_cast<int>(offset)};
}

}  // namespace ladder
