// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/launch_environment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/launch/launch_variables.h"

namespace ladder {
namespace {

constexpr int kDefaultPort = 29500;

struct Address {
  std::optional<Sourced<std::string>> host;
  std::optional<Sourced<int>> port;
};

struct Sources {
  const Variables& variables;
  const LaunchOptions& options;
  Address address;
  std::optional<RankPlacement> task;  // of srun or mpirun; unset in a shell of srun
};

// The value that an option or a variable sets. Throws UsageError if both do and differ.
template <typename T>
std::optional<Sourced<T>> merged_setting(const char* field, const std::optional<T>& option,
                                         const std::string& name,
                                         const std::optional<T>& variable) {
  if (option && variable && *option != *variable) {
    throw UsageError::conflict(field, fmt::format("{} contradicts {}={}", *option, name, *variable),
                               fmt::format("omit {}, or: unset {}", field, name));
  }
  if (variable) return Sourced<T>{name, *variable};
  if (option) return Sourced<T>{field, *option};
  return std::nullopt;
}

void check_placement(const RankPlacement& placement) {
  const auto check_rank = [](const std::string& name, int rank, const std::string& size_name,
                             int size) {
    if (rank >= 0 && rank < size) return;
    throw UsageError::out_of_range(name, rank,
                                   fmt::format("0 to {}, as {} is {}", size - 1, size_name, size),
                                   "ranks count from 0");
  };
  const auto& [size_name, size] = placement.world_size;
  require_between(size_name, size, 1, kLargestWorldSize,
                  "it is the number of processes of the run");
  check_rank(placement.rank.name, placement.rank.value, size_name, size);
  const auto local_size = placement.local_world_size;
  if (local_size && *local_size > size) {
    throw UsageError::out_of_range(placement.local_world_size_name, *local_size,
                                   fmt::format("1 to {0}, as {1} is {0}", size, size_name),
                                   "it is the number of ranks on this machine");
  }
  check_rank(placement.local_rank_name, placement.local_rank.value_or(0),
             local_size ? placement.local_world_size_name : size_name, local_size.value_or(size));
}

Address read_address(const Variables& variables, const LaunchOptions& options) {
  constexpr int kLargestPort = 65535;
  const auto port = options.master_port;
  if (port) require_between("master_port", *port, 1, kLargestPort, "such as 29500");
  return {merged_setting("master_addr", options.master_addr, "MASTER_ADDR",
                         variables.text("MASTER_ADDR")),
          merged_setting("master_port", port, "MASTER_PORT",
                         variables.integer("MASTER_PORT", 1, kLargestPort))};
}

std::string torchrun_command(std::int64_t processes, const LaunchOptions& options) {
  return fmt::format("{} --standalone --nproc-per-node {} --no-python {}", options.torchrun,
                     processes, options.program);
}

// Ranks of the environment inside tasks of srun or mpirun: one torchrun per machine, or a script
// that starts LOCAL_WORLD_SIZE ranks per task.
void refuse_contradiction(const RankPlacement& ranks, const Sources& sources) {
  if (!sources.task || sources.task->world_size.value == 1) return;
  const auto& task = *sources.task;
  const auto& options = sources.options;
  if (sources.variables.has("TORCHELASTIC_RUN_ID")) {
    if (sources.variables.integer("GROUP_WORLD_SIZE", 1).value_or(1) > 1) return;
    throw UsageError::conflict(
        "torchrun",
        fmt::format("started for one machine, but there are {} tasks of {}", task.world_size.value,
                    task.launcher),
        fmt::format("use one launcher: {0}; or one torchrun per machine: {1} -n {2} torchrun "
                    "--nnodes {2} --rdzv-backend c10d --rdzv-endpoint HOST:29400 --no-python {3}; "
                    "or only torchrun: {4} {3}",
                    torchrun_command(2, options), task.launcher, task.world_size.value,
                    options.program, task.without));
  }
  const std::int64_t per_task = ranks.local_world_size.value_or(0);
  const bool fill_task = per_task > 0 && ranks.local_rank &&
                         ranks.world_size.value == per_task * task.world_size.value &&
                         ranks.rank.value == per_task * task.rank.value + *ranks.local_rank;
  if (fill_task || same_ranks(ranks, task)) return;
  throw conflicting_launchers(ranks, task, options);
}

ReadTask& task_reader() {
  static ReadTask read = nullptr;
  return read;
}

constexpr std::array<const char*, 4> kRankVariables = {"RANK", "WORLD_SIZE", "LOCAL_RANK",
                                                       "LOCAL_WORLD_SIZE"};

// Names all that is missing, and commands that set it.
UsageError incomplete_variables(const std::optional<Sourced<int>>& rank,
                                const std::optional<Sourced<int>>& world_size,
                                const Sources& sources) {
  const auto& options = sources.options;
  const auto& address = sources.address;
  std::vector<std::string> missing;
  if (!rank) missing.emplace_back("RANK");
  if (!world_size) missing.emplace_back("WORLD_SIZE");
  if (options.needs_address && !address.host) missing.emplace_back("MASTER_ADDR");
  if (options.needs_address && !address.port) missing.emplace_back("MASTER_PORT");
  std::vector<std::string> set;
  for (const char* name : kRankVariables) {
    if (sources.variables.has(name)) set.emplace_back(name);
  }
  const std::int64_t own = rank ? rank->value : 0;
  const std::int64_t size = world_size ? world_size->value : std::max<std::int64_t>(2, own + 1);
  std::string hint = fmt::format(
      "{}, or by hand, once per rank: RANK={} WORLD_SIZE={} MASTER_ADDR={} MASTER_PORT={} {}",
      torchrun_command(size, options), own, size,
      address.host ? address.host->value : std::string("127.0.0.1"),
      address.port ? address.port->value : kDefaultPort, options.program);
  if (!set.empty() && options.may_be_single)
    hint += fmt::format(", or, for one process: unset {}", fmt::join(set, " "));
  return UsageError::missing(fmt::format("{}", fmt::join(missing, ", ")),
                             options.needs_address
                                 ? "all of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT or none"
                                 : "both of RANK, WORLD_SIZE or none",
                             hint);
}

std::string launcher_name(const std::string& rank_source, const Variables& variables) {
  if (variables.has("LADDER_LISTEN_FD")) return "spawn";
  if (variables.has("TORCHELASTIC_RUN_ID")) {
    return variables.has("ACCELERATE_MIXED_PRECISION") ? "accelerate" : "torchrun";
  }
  return rank_source == "RANK" ? "env" : "options";
}

// Ranks of RANK and its family, or of the options.
std::optional<RankPlacement> read_env(const Sources& sources) {
  const auto& variables = sources.variables;
  const auto& options = sources.options;
  const auto& task = sources.task;
  const auto rank = merged_setting("rank", options.rank, "RANK", variables.integer("RANK", 0));
  const auto world_size = merged_setting("world_size", options.world_size, "WORLD_SIZE",
                                         variables.integer("WORLD_SIZE", 1));
  const bool by_variables = std::any_of(kRankVariables.begin(), kRankVariables.end(),
                                        [&](const char* name) { return variables.has(name); });
  // Under srun and mpirun, options launch only if these started one process.
  const bool by_options = task ? options.rank && options.world_size && *options.world_size > 1 &&
                                     task->world_size.value == 1
                               : options.rank || options.world_size;
  if (!by_variables && !by_options) return std::nullopt;
  const bool has_address = !options.needs_address || (sources.address.host && sources.address.port);
  if (!rank || !world_size || !has_address) throw incomplete_variables(rank, world_size, sources);
  return RankPlacement{.launcher = launcher_name(rank->name, variables),
                       .rank = *rank,
                       .world_size = *world_size,
                       .local_rank = variables.integer("LOCAL_RANK", 0),
                       .local_world_size = variables.integer("LOCAL_WORLD_SIZE", 1),
                       .local_rank_name = "LOCAL_RANK",
                       .local_world_size_name = "LOCAL_WORLD_SIZE"};
}

// Whether all ranks are on this machine, as far as the address shows it.
bool is_local_rendezvous(const Sources& sources) {
  if (!sources.address.host) return !sources.options.needs_address;
  const auto& host = sources.address.host->value;
  const bool is_loopback = host == "localhost" || host == "::1" || host.starts_with("127.");
  return is_loopback && !sources.variables.has("KUBERNETES_SERVICE_HOST");
}

void complete_local_ranks(RankPlacement& placement, const Sources& sources) {
  auto& rank = placement.local_rank;
  auto& size = placement.local_world_size;
  if (!rank && !size && sources.task && same_ranks(placement, *sources.task)) {
    check_placement(*sources.task);
    rank = sources.task->local_rank;
    size = sources.task->local_world_size;
  }
  const bool all_here = is_local_rendezvous(sources);
  if (!rank && size) rank = placement.rank.value % *size;
  if (!rank) rank = all_here ? placement.rank.value : 0;
  if (!size) size = all_here ? placement.world_size.value : *rank + 1;
}

Address address_of_tasks(const RankPlacement& task, const Sources& sources) {
  const auto& options = sources.options;
  Address address = sources.address;
  const bool one_machine = task.local_world_size == task.world_size.value;
  if (!address.host && one_machine) address.host = Sourced<std::string>{"", "127.0.0.1"};
  if (!options.needs_address) return address;
  if (!address.host && task.host) address.host = task.host();
  if (!address.host) {
    throw UsageError::missing(
        "MASTER_ADDR",
        fmt::format("the host of rank 0, as {} runs on several machines", task.launcher),
        fmt::format("MASTER_ADDR=HOST mpirun -x MASTER_ADDR -n {} {}", task.world_size.value,
                    options.program));
  }
  if (!address.port) address.port = task.port ? task.port() : Sourced<int>{"", kDefaultPort};
  return address;
}

LaunchEnvironment to_environment(const RankPlacement& placement, const Address& address,
                                 const Variables& variables) {
  LaunchEnvironment result{.launcher = placement.launcher,
                           .rank = placement.rank.value,
                           .world_size = placement.world_size.value,
                           .local_rank = placement.local_rank.value_or(0),
                           .local_world_size = placement.local_world_size.value_or(1),
                           .master_addr = address.host ? address.host->value : "",
                           .master_port = address.port ? address.port->value : 0};
  std::vector<std::string> names = {placement.rank.name, placement.world_size.name};
  if (address.host) names.push_back(address.host->name);
  if (address.port) names.push_back(address.port->name);
  std::erase(names, "");
  result.variables = fmt::format("{}", fmt::join(names, ", "));
  result.listen_fd = variables.integer("LADDER_LISTEN_FD", 0);
  result.use_agent_store =
      !result.listen_fd && variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  result.restart_count = variables.integer("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
  return result;
}

// A task of srun or mpirun, whose variables nothing reads, would train alone.
void refuse_unread_task(const Variables& variables) {
  if (task_reader() != nullptr) return;
  for (const auto& names : kLauncherVariables) {
    const bool is_there = variables.has(names.rank) && variables.has(names.world_size) &&
                          variables.text(names.world_size) != "1";
    if (!is_there || (names.launcher == "srun" && !variables.has("SLURM_STEP_ID"))) continue;
    throw UsageError::conflict(
        names.rank,
        fmt::format("set by {}, whose variables this program does not read", names.launcher),
        "link ladder::launchers, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
  }
}

// One process. Two launches look the same and are mistakes.
LaunchEnvironment not_launched(const std::optional<RankPlacement>& shell,
                               const Variables& variables, const LaunchOptions& options) {
  if (shell && shell->world_size.value > 1) {
    throw UsageError::conflict(
        "srun",
        fmt::format("cannot distinguish a launch of {} tasks from a shell in the first of them",
                    shell->world_size.value),
        fmt::format("SLURM_JOB_NAME=train srun -n {0} {1}, or, for one process: {2} {1}",
                    shell->world_size.value, options.program, shell->without));
  }
  if (variables.has("ACCELERATE_MIXED_PRECISION") && variables.has("MASTER_ADDR")) {
    throw UsageError::conflict(
        "accelerate launch", "started one process: MASTER_ADDR is set, RANK is not",
        fmt::format("accelerate launch --multi_gpu --no_python --num_processes 2 {}, which works "
                    "without GPUs too (accelerate launch --cpu starts one process), or: {}",
                    options.program, torchrun_command(2, options)));
  }
  refuse_unread_task(variables);
  LaunchEnvironment result;
  if (variables.has("SLURM_JOB_ID")) result.variables = "in a SLURM job, but not by srun";
  return result;
}

}  // namespace

bool same_ranks(const RankPlacement& a, const RankPlacement& b) {
  return a.rank.value == b.rank.value && a.world_size.value == b.world_size.value;
}

UsageError conflicting_launchers(const RankPlacement& inner, const RankPlacement& outer,
                                 const LaunchOptions& options) {
  const auto ranks = [](const RankPlacement& placement) {
    return fmt::format("{}={}, {}={} by {}", placement.rank.name, placement.rank.value,
                       placement.world_size.name, placement.world_size.value, placement.launcher);
  };
  return UsageError::conflict(
      inner.rank.name, fmt::format("{} contradicts {}", ranks(inner), ranks(outer)),
      fmt::format("use one launcher: {0}, or: mpirun -n 2 {1}, or: srun -n 2 {1}; or only {2}: "
                  "{3} {1}",
                  torchrun_command(2, options), options.program, inner.launcher, outer.without));
}

bool read_tasks_with(ReadTask read) {
  task_reader() = read;
  return true;
}

std::string LaunchEnvironment::description() const {
  if (launcher == "single") {
    const std::string why = variables.empty() ? "" : fmt::format(" ({})", variables);
    return "rank 0 of 1, without a launcher" + why;
  }
  std::string text = fmt::format("rank {} of {}, local rank {} of {}, by {} ({})", rank, world_size,
                                 local_rank, local_world_size, launcher, variables);
  const bool is_ipv6 = master_addr.find(':') != std::string::npos;
  const std::string host = is_ipv6 ? fmt::format("[{}]", master_addr) : master_addr;
  if (!host.empty()) text += fmt::format(", store {}:{}", host, master_port);
  if (restart_count > 0) text += fmt::format(", restart {}", restart_count);
  return text;
}

LaunchEnvironment read_launch_environment(const LaunchOptions& options,
                                          const VariableLookup& lookup) {
  const Variables variables(lookup);
  Sources sources{variables, options, read_address(variables, options),
                  task_reader() == nullptr ? std::nullopt : task_reader()(variables, options)};
  std::optional<RankPlacement> shell;
  if (sources.task && sources.task->in_shell) shell.swap(sources.task);
  if (auto ranks = read_env(sources)) {
    check_placement(*ranks);
    refuse_contradiction(*ranks, sources);
    complete_local_ranks(*ranks, sources);
    return to_environment(*ranks, sources.address, variables);
  }
  if (!sources.task) return not_launched(shell, variables, options);
  auto task = *sources.task;
  check_placement(task);
  merged_setting("rank", options.rank, task.rank.name, std::optional(task.rank.value));
  merged_setting("world_size", options.world_size, task.world_size.name,
                 std::optional(task.world_size.value));
  complete_local_ranks(task, sources);
  return to_environment(task, address_of_tasks(task, sources), variables);
}

LaunchEnvironment require_launcher(const LaunchOptions& options, const VariableLookup& lookup) {
  auto required = options;
  required.may_be_single = false;
  LaunchEnvironment result = read_launch_environment(required, lookup);
  if (result.launcher != "single") return result;
  const Variables variables(lookup);
  std::vector<std::string> missing;
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    if (!variables.has(name)) missing.emplace_back(name);
  }
  const auto& program = options.program;
  const std::string srun =
      variables.has("SLURM_JOB_ID") ? fmt::format("in this SLURM job: srun {}, or: ", program) : "";
  throw UsageError::conflict(
      "launcher variables not set", fmt::format("{}", fmt::join(missing, ", ")),
      fmt::format("{}{}, or: mpirun -n 2 {}, or: RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 "
                  "MASTER_PORT=29500 {}",
                  srun, torchrun_command(2, options), program, program));
}

}  // namespace ladder
