// SPDX-License-Identifier: Apache-2.0
// srun and the mpirun of Open MPI, MVAPICH2, MPICH and Intel: see launch_environment.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/core/text.h"
#include "ladder/launch/launch_variables.h"

namespace ladder {
namespace {

// SLURM: a job is a set of machines for some time; a step is one srun inside it, with tasks
// numbered from 0. Variables of the job (SLURM_NTASKS, SLURM_NODELIST) are also set in batch
// scripts and shells, those of the step only in processes that srun started.

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

// The first machine of the step, where rank 0 runs: of "host[5-9,12]" it is host5. Throws
// UsageError, with a command for `program`, if there is no such list, or if rank 0 may run
// elsewhere: srun -m arbitrary.
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

// A port that two jobs on one machine rarely share, and two steps of one job do not:
// 15000 + (job + 997 * step) % 10000, equal on all ranks. Counterpart: Lightning's default, which
// ignores the step.
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

// This process as a task of a step, or nothing if srun did not start it. Throws UsageError if
// variables of the step are missing or malformed.
std::optional<RankPlacement> read_srun(const Variables& variables, const LaunchOptions& options) {
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
                       .in_shell = is_shell && variables.has("SLURM_PTY_PORT"),
                       .host = [=] { return slurm_host(variables, options.program); },
                       .port = [=] { return slurm_port(variables, options.program); }};
}

std::optional<RankPlacement> read_mpirun_of(const LauncherVariables& names,
                                            const Variables& variables,
                                            const LaunchOptions& options) {
  const auto rank = variables.integer(names.rank, 0);
  const auto world_size = variables.integer(names.world_size, 1);
  if (!rank && !world_size) return std::nullopt;
  if (!rank || !world_size) {
    throw UsageError::missing(
        rank ? names.world_size : names.rank,
        fmt::format("a number together with {}", rank ? names.rank : names.world_size),
        fmt::format("mpirun -n 2 {}, which sets both", options.program));
  }
  return RankPlacement{.launcher = "mpirun",
                       .rank = {names.rank, *rank},
                       .world_size = {names.world_size, *world_size},
                       .local_rank = variables.integer(names.local_rank, 0),
                       .local_world_size = variables.integer(names.local_world_size, 1),
                       .local_rank_name = names.local_rank,
                       .local_world_size_name = names.local_world_size,
                       .without = fmt::format("env -u {} -u {}", names.rank, names.world_size)};
}

// Each MPI has variables of its own. One that was started inside another one may leave both.
std::optional<RankPlacement> read_mpirun(const Variables& variables, const LaunchOptions& options) {
  std::optional<RankPlacement> found;
  for (const auto& names : kLauncherVariables) {
    if (names.launcher != std::string_view("mpirun")) continue;
    auto other = read_mpirun_of(names, variables, options);
    if (found && other && !same_ranks(*found, *other)) {
      throw conflicting_launchers(*other, *found, options);
    }
    if (!found) found = std::move(other);
  }
  return found;
}

// This process as a task of srun or mpirun.
std::optional<RankPlacement> read_task(const Variables& variables, const LaunchOptions& options) {
  auto srun = read_srun(variables, options);
  auto mpirun = read_mpirun(variables, options);
  if (!mpirun) return srun;
  if (!srun || srun->in_shell || srun->world_size.value == 1) return mpirun;
  if (same_ranks(*srun, *mpirun)) return srun;
  const bool starts_daemons = mpirun->world_size.value > srun->world_size.value;
  if (!starts_daemons) throw conflicting_launchers(*mpirun, *srun, options);
  return mpirun;
}

}  // namespace
}  // namespace ladder

extern "C" const bool ladder_task_launchers;
const bool ladder_task_launchers = ladder::read_tasks_with(ladder::read_task);
