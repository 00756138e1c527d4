// SPDX-License-Identifier: Apache-2.0
#include "mnist/main.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/accelerate/function_launcher.h"
#include "ladder/core/error.h"
#include "ladder/core/gpus.h"
#include "ladder/core/log.h"
#include "ladder/launch/exit_status.h"
#include "ladder/launch/launch_environment.h"
#include "ladder/launch/signals.h"
#include "mnist/command_line.h"

namespace mnist {
namespace {

using namespace ladder;

constexpr int kProcessesWithoutGpu = 2;

// Without these streams, the next file to be opened would get their numbers, and their lines.
void prepare_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    const int opened = ::open("/dev/null", O_RDWR);
    if (opened >= 0 && opened != stream) ::dup2(opened, stream);
  }
}

// Hides all other GPUs. "auto" then means a GPU: a wrong number must not end in training on the
// CPU.
void show_only_chosen_gpus(SingleOptions& options) {
  if (options.gpu.empty()) return;
  const std::string list = fmt::format("{}", fmt::join(options.gpu, ","));
  require_gpus_of_launcher("--gpu", list);
  if (machine_gpu_count() == 0) {
    throw UsageError::conflict("--gpu " + list, no_gpu_reason(),
                               "omit the flag, or use --device cpu");
  }
  ::setenv("CUDA_VISIBLE_DEVICES", list.c_str(), /*replace=*/1);
  if (options.device == "auto") options.device = "cuda";
}

// A program that can do both starts ranks only if no launcher has. Returns the rank of this
// process.
int find_launcher(const ProcessGroupOptions& group, ProcessOptions& processes) {
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

void log_notes(const SingleOptions& options, int rank) {
  const Log log({.rank = rank, .quiet = options.record.quiet});
  for (const auto& note : options.notes) log.info(note);
}

// Without a launcher, the configuration file decides the number of processes. Flags take
// precedence.
void apply_config_file(const SingleOptions& options, const AcceleratorOptions& accelerator,
                       ProcessOptions& processes) {
  if (processes.launched) return;
  AccelerateSources sources;
  if (!accelerator.config_file.empty()) {
    sources.file = read_config_file(accelerator.config_file);
  }
  const auto config = resolve_accelerate_config(sources);
  if (config.num_machines > 1) {
    throw UsageError::conflict(
        accelerator.config_file, fmt::format("num_machines is {}", config.num_machines),
        "start it on each of them with accelerate launch --no_python --config_file FILE PROGRAM");
  }
  const bool several = config.distributed_type != DistributedType::kNo;
  if (processes.nprocs == 0) processes.nprocs = several ? config.num_processes.value_or(1) : 1;
  if (processes.master_port == 0) processes.master_port = config.main_process_port.value_or(0);
  const bool may_choose_gpus = options.gpu.empty() && config.gpu_ids != "all" && !config.use_cpu;
  if (may_choose_gpus && machine_gpu_count() > 0) {
    ::setenv("CUDA_VISIBLE_DEVICES", config.gpu_ids.c_str(), /*replace=*/1);
  }
}

int default_nprocs(const std::string& device) {
  const int gpus = device == "cpu" ? 0 : visible_gpu_count();
  return gpus > 0 ? gpus : kProcessesWithoutGpu;
}

// Chooses GPUs and processes, in the order in which one depends on the other.
template <typename Options>
void prepare(Options& options) {
  constexpr bool has_group = std::is_base_of_v<GroupOptions, Options>;
  constexpr bool spawns = std::is_base_of_v<ProcessOptions, Options>;
  constexpr bool may_be_launched = spawns && !std::is_same_v<Options, SpawnedOptions>;
  constexpr bool has_accelerator = requires { options.accelerator; };
  show_only_chosen_gpus(options);
  int rank = 0;
  if constexpr (may_be_launched) rank = find_launcher(options.process_group, options);
  log_notes(options, rank);
  if constexpr (has_group) options.process_group.device = options.device;
  if constexpr (has_accelerator) {
    options.accelerator.device = options.device;
    apply_config_file(options, options.accelerator, options);
  }
  if constexpr (spawns) {
    if (options.nprocs == 0) options.nprocs = default_nprocs(options.device);
  }
}

// Stopped by a signal, the program dies of it, so that a script that runs it stops too.
int exit_status(int code) {
  if (!is_signal_exit_code(code)) return code;
  std::fflush(nullptr);
  SignalGuard::reraise(code - exit_code_of_signal(0));
}

}  // namespace

template <typename Options>
int run_main(int argc, char** argv, const std::function<void(const Options&)>& run) {
  return exit_status(call_and_report([&] {
    prepare_standard_streams();
    auto command_line = parse_command_line<Options>(argc, argv);
    if (!command_line.options) {
      std::string_view text = command_line.text;
      if (text.ends_with('\n')) text.remove_suffix(1);
      return print_line(text);
    }
    prepare(*command_line.options);
    run(*command_line.options);
  }));
}

template <typename Options>
int launch_main(int argc, char** argv, const std::function<void(const Options&)>& run) {
  const auto start = [&](const Options& options) {
    if (options.launched) return run(options);
    function_launcher(run, std::tuple(options), {options.nprocs, options.master_port});
  };
  return run_main<Options>(argc, argv, start);
}

template int run_main(int, char**, const std::function<void(const SingleOptions&)>&);
template int run_main(int, char**, const std::function<void(const ReplicaOptions&)>&);
template int run_main(int, char**, const std::function<void(const SpawnedOptions&)>&);
template int run_main(int, char**, const std::function<void(const LaunchedOptions&)>&);
template int run_main(int, char**, const std::function<void(const AmpOptions&)>&);
template int run_main(int, char**, const std::function<void(const AcceleratedOptions&)>&);
template int run_main(int, char**, const std::function<void(const TrainerRunOptions&)>&);
template int run_main(int, char**, const std::function<void(const PipelineRunOptions&)>&);
template int launch_main(int, char**, const std::function<void(const TrainerRunOptions&)>&);

}  // namespace mnist
