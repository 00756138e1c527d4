// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/launch_environment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "ladder/comm/launch_variables.h"
#include "ladder/comm/slurm_step.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr int kDefaultPort = 29500;

template <typename T>
std::optional<Sourced<T>> agreed(const char* field, const std::optional<T>& option,
                                 const char* name, const std::optional<T>& variable) {
  if (option && variable && *option != *variable) {
    throw UsageError::conflict(field, fmt::format("{} contradicts {}={}", *option, name, *variable),
                               fmt::format("leave {} out, or: unset {}", field, name));
  }
  if (variable) return Sourced<T>{name, *variable};
  if (option) return Sourced<T>{field, *option};
  return std::nullopt;
}

bool same_place(const Place& a, const Place& b) {
  return a.rank.value == b.rank.value && a.world_size.value == b.world_size.value;
}

void check_rank(const std::string& name, int rank, const std::string& size_name, int size) {
  if (rank >= 0 && rank < size) return;
  throw UsageError::out_of_range(name, rank,
                                 fmt::format("0 to {}, as {} is {}", size - 1, size_name, size),
                                 "ranks count from 0");
}

void check_place(const Place& place) {
  const int size = place.world_size.value;
  if (size < 1) throw UsageError::out_of_range(place.world_size.name, size, "at least 1");
  check_rank(place.rank.name, place.rank.value, place.world_size.name, size);
  if (place.local_world_size && *place.local_world_size > size) {
    throw UsageError::out_of_range(
        place.local_world_size_name, *place.local_world_size,
        fmt::format("1 to {0}, as {1} is {0}", size, place.world_size.name),
        "it counts the ranks of this machine alone");
  }
  const auto local_size = place.local_world_size;
  check_rank(place.local_rank_name, place.local_rank.value_or(0),
             local_size ? place.local_world_size_name : place.world_size.name,
             local_size.value_or(size));
}

struct Address {
  std::optional<Sourced<std::string>> host;
  std::optional<Sourced<int>> port;
};

Address read_address(const Variables& variables, const LaunchOptions& options) {
  constexpr int kLargestPort = 65535;
  const auto port = options.master_port;
  if (port && (*port < 1 || *port > kLargestPort)) {
    throw UsageError::out_of_range("master_port", *port, "1 to 65535");
  }
  return {agreed("master_addr", options.master_addr, "MASTER_ADDR", variables.text("MASTER_ADDR")),
          agreed("master_port", port, "MASTER_PORT",
                 variables.integer("MASTER_PORT", 1, kLargestPort))};
}

std::string torchrun_command(std::int64_t processes, const LaunchOptions& options) {
  return fmt::format("{} --standalone --nproc-per-node {} --no-python {}", options.torchrun,
                     processes, options.program);
}

struct MpiNames {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

constexpr std::array<MpiNames, 3> kMpi = {{
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
}};

std::optional<Place> read_mpirun(const Variables& variables, const LaunchOptions& options) {
  const auto* const names = std::find_if(kMpi.begin(), kMpi.end(), [&](const MpiNames& mpi) {
    return variables.has(mpi.rank) || variables.has(mpi.world_size);
  });
  if (names == kMpi.end()) return std::nullopt;
  const auto rank = variables.integer(names->rank, 0);
  const auto world_size = variables.integer(names->world_size, 1);
  if (!rank || !world_size) {
    throw UsageError::missing(
        rank ? names->world_size : names->rank,
        fmt::format("a number beside {}", rank ? names->rank : names->world_size),
        fmt::format("mpirun -n 2 {}, which sets both", options.program));
  }
  return Place{.launcher = "mpirun",
               .rank = {names->rank, *rank},
               .world_size = {names->world_size, *world_size},
               .local_rank = variables.integer(names->local_rank, 0),
               .local_world_size = variables.integer(names->local_world_size, 1),
               .local_rank_name = names->local_rank,
               .local_world_size_name = names->local_world_size,
               .without = fmt::format("env -u {} -u {}", names->rank, names->world_size)};
}

std::string in_words(const Place& place) {
  return fmt::format("{}={}, {}={}", place.rank.name, place.rank.value, place.world_size.name,
                     place.world_size.value);
}

UsageError conflicting_launchers_error(const Place& inner, const Place& outer,
                                       const LaunchOptions& options) {
  return UsageError::conflict(
      inner.rank.name,
      fmt::format("{} by {} contradicts {} by {}", in_words(inner), inner.launcher, in_words(outer),
                  outer.launcher),
      fmt::format("use one launcher: {0}, or: mpirun -n 2 {1}, or: srun -n 2 {1}; or only {2}: "
                  "{3} {1}",
                  torchrun_command(2, options), options.program, inner.launcher, outer.without));
}

UsageError torchrun_per_task_error(const Place& tasks, const LaunchOptions& options) {
  return UsageError::conflict(
      "torchrun",
      fmt::format("started for one machine, but there are {} tasks of {}", tasks.world_size.value,
                  tasks.launcher),
      fmt::format(
          "use one launcher: {0}; or one torchrun per machine: {1} -n {2} torchrun --nnodes "
          "{2} --rdzv-backend c10d --rdzv-endpoint HOST:29400 --no-python {3}; or "
          "only torchrun: {4} {3}",
          torchrun_command(2, options), tasks.launcher, tasks.world_size.value, options.program,
          tasks.without));
}

// The tasks of srun or mpirun, of which this process is one.
std::optional<Place> read_tasks(const Variables& variables, const LaunchOptions& options) {
  auto srun = read_srun(variables);
  auto mpirun = read_mpirun(variables, options);
  if (!mpirun) return srun;
  if (!srun || srun->in_shell || srun->world_size.value == 1) return mpirun;
  if (same_place(*srun, *mpirun)) return srun;
  const bool carried_daemons = mpirun->world_size.value > srun->world_size.value;
  if (!carried_daemons) throw conflicting_launchers_error(*mpirun, *srun, options);
  return mpirun;
}

// Ranks that a script started by hand, LOCAL_WORLD_SIZE of them in each task.
bool ranks_fill_task(const Place& place, const Place& task) {
  if (!place.local_rank || !place.local_world_size) return false;
  const std::int64_t per_task = *place.local_world_size;
  return place.world_size.value == per_task * task.world_size.value &&
         place.rank.value == per_task * task.rank.value + *place.local_rank;
}

void refuse_contradiction(const Place& place, const std::optional<Place>& tasks,
                          const Variables& variables, const LaunchOptions& options) {
  if (!tasks || tasks->world_size.value == 1) return;
  if (variables.has("TORCHELASTIC_RUN_ID")) {
    const bool lone = variables.integer("GROUP_WORLD_SIZE", 1).value_or(1) == 1;
    if (lone) throw torchrun_per_task_error(*tasks, options);
  } else if (!same_place(place, *tasks) && !ranks_fill_task(place, *tasks)) {
    throw conflicting_launchers_error(place, *tasks, options);
  }
}

constexpr std::array<const char*, 4> kRankVariables = {"RANK", "WORLD_SIZE", "LOCAL_RANK",
                                                       "LOCAL_WORLD_SIZE"};

struct SaidRanks {
  std::optional<Sourced<int>> rank;
  std::optional<Sourced<int>> world_size;
};

SaidRanks read_ranks(const Variables& variables, const LaunchOptions& options) {
  return {
      agreed("rank", options.rank, "RANK", variables.integer("RANK", 0)),
      agreed("world_size", options.world_size, "WORLD_SIZE", variables.integer("WORLD_SIZE", 1))};
}

// Commands that set what is half set, with the values that are there.
std::string fix_for_incomplete(const SaidRanks& said, const Address& address,
                               const Variables& variables, const LaunchOptions& options) {
  const int rank = said.rank ? said.rank->value : 0;
  const std::int64_t size =
      said.world_size ? said.world_size->value : std::max(std::int64_t{2}, std::int64_t{rank} + 1);
  std::vector<std::string> set;
  for (const char* name : kRankVariables) {
    if (variables.has(name)) set.emplace_back(name);
  }
  std::string cure = fmt::format(
      "{}, or by hand, once per rank: RANK={} WORLD_SIZE={} MASTER_ADDR={} MASTER_PORT={} {}",
      torchrun_command(size, options), rank, size,
      address.host ? address.host->value : std::string("127.0.0.1"),
      address.port ? address.port->value : kDefaultPort, options.program);
  if (!set.empty()) cure += fmt::format(", or, to start alone: unset {}", fmt::join(set, " "));
  return cure;
}

UsageError incomplete_variables(const SaidRanks& said, const Address& address,
                                const Variables& variables, const LaunchOptions& options) {
  std::vector<std::string> missing;
  if (!said.rank) missing.emplace_back("RANK");
  if (!said.world_size) missing.emplace_back("WORLD_SIZE");
  if (options.needs_address && !address.host) missing.emplace_back("MASTER_ADDR");
  if (options.needs_address && !address.port) missing.emplace_back("MASTER_PORT");
  return UsageError::missing(fmt::format("{}", fmt::join(missing, ", ")),
                             options.needs_address
                                 ? "all of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT or none"
                                 : "both of RANK, WORLD_SIZE or none",
                             fix_for_incomplete(said, address, variables, options));
}

std::string launcher_name(const std::string& said_by, const Variables& variables) {
  if (variables.has("LADDER_LISTEN_FD")) return "spawn";
  if (variables.has("TORCHELASTIC_RUN_ID")) {
    return variables.has("ACCELERATE_MIXED_PRECISION") ? "accelerate" : "torchrun";
  }
  return said_by == "RANK" ? "env" : "options";
}

// Do the options make a launch of their own, or do they only repeat what `tasks` say?
bool options_launch(const LaunchOptions& options, const std::optional<Place>& tasks) {
  if (!tasks) return options.rank || options.world_size;
  const bool is_rank_of_many = options.rank && options.world_size && *options.world_size > 1;
  return is_rank_of_many && tasks->world_size.value == 1;
}

std::optional<Place> read_env(const Variables& variables, const LaunchOptions& options,
                              const Address& address, const std::optional<Place>& tasks) {
  const SaidRanks said = read_ranks(variables, options);
  const bool by_variables = std::any_of(kRankVariables.begin(), kRankVariables.end(),
                                        [&](const char* name) { return variables.has(name); });
  if (!by_variables && !options_launch(options, tasks)) return std::nullopt;
  const bool has_address = !options.needs_address || (address.host && address.port);
  if (!said.rank || !said.world_size || !has_address) {
    throw incomplete_variables(said, address, variables, options);
  }
  return Place{.launcher = launcher_name(said.rank->name, variables),
               .rank = *said.rank,
               .world_size = *said.world_size,
               .local_rank = variables.integer("LOCAL_RANK", 0),
               .local_world_size = variables.integer("LOCAL_WORLD_SIZE", 1),
               .local_rank_name = "LOCAL_RANK",
               .local_world_size_name = "LOCAL_WORLD_SIZE"};
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// Do all ranks meet on this machine, as far as one can tell?
bool is_local_rendezvous(const Address& address, const Variables& variables,
                         const LaunchOptions& options) {
  if (!address.host) return !options.needs_address;
  return is_loopback(address.host->value) && !variables.has("KUBERNETES_SERVICE_HOST");
}

void take_local_ranks(Place& place, const std::optional<Place>& tasks) {
  if (place.local_rank || place.local_world_size || !tasks || !same_place(place, *tasks)) return;
  check_place(*tasks);
  place.local_rank = tasks->local_rank;
  place.local_world_size = tasks->local_world_size;
}

void complete_local_ranks(Place& place, bool all_here) {
  if (!place.local_rank && place.local_world_size) {
    place.local_rank = place.rank.value % *place.local_world_size;
  }
  if (!place.local_rank) place.local_rank = all_here ? place.rank.value : 0;
  if (!place.local_world_size) {
    place.local_world_size = all_here ? place.world_size.value : *place.local_rank + 1;
  }
}

Address address_of_tasks(const Place& place, Address address, const Variables& variables,
                         const LaunchOptions& options) {
  const bool by_srun = place.launcher == "srun";
  const bool one_machine = place.local_world_size == place.world_size.value;
  if (!address.host && one_machine) address.host = Sourced<std::string>{"", "127.0.0.1"};
  if (!options.needs_address) return address;
  if (!address.host && by_srun) address.host = slurm_host(variables, options.program);
  if (!address.host) {
    throw UsageError::missing(
        "MASTER_ADDR",
        fmt::format("the host of rank 0, as {} runs on several machines", place.launcher),
        fmt::format("MASTER_ADDR=HOST mpirun -x MASTER_ADDR -n {} {}", place.world_size.value,
                    options.program));
  }
  if (!address.port) {
    address.port =
        by_srun ? slurm_port(variables, options.program) : Sourced<int>{"", kDefaultPort};
  }
  return address;
}

void refuse_other_options(const Place& tasks, const LaunchOptions& options) {
  agreed("rank", options.rank, tasks.rank.name.c_str(), std::optional(tasks.rank.value));
  agreed("world_size", options.world_size, tasks.world_size.name.c_str(),
         std::optional(tasks.world_size.value));
}

LaunchEnvironment launched(const Place& place, const Address& address, const Variables& variables) {
  LaunchEnvironment result{.launcher = place.launcher,
                           .rank = place.rank.value,
                           .world_size = place.world_size.value,
                           .local_rank = place.local_rank.value_or(0),
                           .local_world_size = place.local_world_size.value_or(1),
                           .master_addr = address.host ? address.host->value : "",
                           .master_port = address.port ? address.port->value : 0};
  std::vector<std::string> names = {place.rank.name, place.world_size.name};
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

// No launcher started this process. Two cases look like it and are mistakes.
LaunchEnvironment alone(const std::optional<Place>& tasks, const Variables& variables,
                        const LaunchOptions& options) {
  if (tasks && tasks->world_size.value > 1) {
    throw UsageError::conflict(
        "srun",
        fmt::format("cannot distinguish a launch of {} tasks from a shell in the first of them",
                    tasks->world_size.value),
        fmt::format("SLURM_JOB_NAME=train srun -n {0} {1}, or, alone: {2} {1}",
                    tasks->world_size.value, options.program, tasks->without));
  }
  if (variables.has("ACCELERATE_MIXED_PRECISION") && variables.has("MASTER_ADDR")) {
    throw UsageError::conflict(
        "accelerate launch", "started one process, and set MASTER_ADDR for several but no RANK",
        fmt::format("accelerate launch --multi_gpu --no_python --num_processes 2 {}, which works "
                    "without GPUs too (accelerate launch --cpu starts one process), or: {}",
                    options.program, torchrun_command(2, options)));
  }
  LaunchEnvironment result;
  if (variables.has("SLURM_JOB_ID")) result.variables = "in a SLURM job, but not by srun";
  return result;
}

}  // namespace

std::string LaunchEnvironment::description() const {
  if (launcher == "single") {
    const std::string why = variables.empty() ? "" : fmt::format(" ({})", variables);
    return "rank 0 of 1, started alone" + why;
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
  const Address address = read_address(variables, options);
  const auto read = read_tasks(variables, options);
  const auto tasks = read && !read->in_shell ? read : std::nullopt;
  auto place = read_env(variables, options, address, tasks);
  if (!place && !tasks) return alone(read, variables, options);
  if (place) {
    check_place(*place);
    refuse_contradiction(*place, tasks, variables, options);
    take_local_ranks(*place, tasks);
    complete_local_ranks(*place, is_local_rendezvous(address, variables, options));
    return launched(*place, address, variables);
  }
  place = tasks;
  check_place(*place);
  refuse_other_options(*place, options);
  complete_local_ranks(*place, is_local_rendezvous(address, variables, options));
  return launched(*place, address_of_tasks(*place, address, variables, options), variables);
}

LaunchEnvironment require_launcher(const LaunchOptions& options, const VariableLookup& lookup) {
  LaunchEnvironment result = read_launch_environment(options, lookup);
  if (result.launcher != "single") return result;
  const Variables variables(lookup);
  std::vector<std::string> missing;
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    if (!variables.has(name)) missing.emplace_back(name);
  }
  const auto& program = options.program;
  const std::string srun =
      variables.has("SLURM_JOB_ID") ? fmt::format("in this SLURM job: srun {}, or: ", program) : "";
  throw UsageError::missing(
      fmt::format("{}", fmt::join(missing, ", ")), "launcher variables",
      fmt::format("{}{}, or: mpirun -n 2 {}, or: RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 "
                  "MASTER_PORT=29500 {}",
                  srun, torchrun_command(2, options), program, program));
}

}  // namespace ladder
