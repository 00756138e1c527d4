// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/core/gpus.h"
#include "ladder/core/system_limits.h"
#include "ladder/core/threads.h"
#include "ladder/launch/launch_environment.h"
#include "ladder/launch/spawn.h"
#include "mnist/processes.h"

namespace mnist {
namespace {

using namespace ladder;

constexpr int kProcessesWithoutGpu = 2;

// A program that can do both starts ranks only if no launcher has. Returns the rank of this
// process.
int rank_of_launcher(const ProcessGroupOptions& group, ProcessOptions& processes) {
  const bool has_rank =
      group.rank || std::ranges::any_of(kLauncherVariables, [](const auto& names) {
        return environment_variable(names.rank).has_value();
      });
  if (group.world_size && !has_rank) {
    throw UsageError::missing("--world-size", "--rank too, or a launcher that gives one",
                              fmt::format("did you mean --nprocs {}?", *group.world_size));
  }
  const bool by_environment = group.init_method == "env://";
  const auto launch = read_launch_environment({.rank = group.rank,
                                               .world_size = group.world_size,
                                               .needs_address = by_environment,
                                               .program = group.program,
                                               .torchrun = group.torchrun});
  processes.launched = launch.launcher != "single";
  if (!processes.launched && !by_environment) {
    throw UsageError::conflict("--init-method", "no launcher has started the other ranks",
                               "give --rank and --world-size too, or omit --init-method");
  }
  const bool asked_for = processes.nprocs != 0 || processes.master_port != 0;
  if (!processes.launched || !asked_for) return launch.rank;
  const std::string flag = processes.nprocs != 0 ? "--nprocs" : "--master-port";
  const bool by_flags = launch.launcher == "options";
  throw UsageError::conflict(flag,
                             "the ranks have been started by " +
                                 (by_flags ? "you, with --rank and --world-size" : launch.launcher),
                             "omit " + flag + ", or start the program by itself");
}

}  // namespace

void find_launcher(GroupOptions& group, ProcessOptions& processes) {
  show_only_chosen_gpus(group);
  log_notes(group, rank_of_launcher(group.process_group, processes));
  group.process_group.device = group.device;
}

void complete_nprocs(const GroupOptions& group, ProcessOptions& processes) {
  if (processes.nprocs == 0) {
    const int gpus = group.device == "cpu" ? 0 : visible_gpu_count();
    processes.nprocs = gpus > 0 ? gpus : kProcessesWithoutGpu;
  }
  if (processes.launched || processes.nprocs == 1) return;
  const auto choice =
      choose_threads({.requested = group.threads, .local_world_size = processes.nprocs});
  require_ranks("nprocs", processes.nprocs,
                kGroupThreads + choice.threads - 1 + 2 * group.data.num_workers);  // train and test
}

void choose_processes(SpawnedOptions& options) {
  show_only_chosen_gpus(options);
  log_notes(options, /*rank=*/0);
  options.process_group.device = options.device;
  complete_nprocs(options, options);
}

void choose_processes(LaunchedOptions& options) {
  show_only_chosen_gpus(options);
  log_notes(options, /*rank=*/0);
  options.process_group.device = options.device;
}

void choose_processes(AmpOptions& options) {
  find_launcher(options, options);
  complete_nprocs(options, options);
}

void choose_processes(PipelineRunOptions& options) {
  find_launcher(options, options);
  complete_nprocs(options, options);
}

}  // namespace mnist
