// SPDX-License-Identifier: Apache-2.0
#include "ladder/stage/run_main.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <tuple>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/accelerate/function_launcher.h"
#include "ladder/comm/launch_environment.h"
#include "ladder/core/error.h"
#include "ladder/core/exit_status.h"
#include "ladder/core/gpus.h"
#include "ladder/core/interruption.h"
#include "ladder/core/log.h"
#include "ladder/launch/signal_guard.h"

namespace ladder {
namespace {

constexpr int kProcessesWithoutGpu = 2;

// A reader that has gone is an error of the write: it ends no training where only progress is lost.
//
// A stream that the caller closed would otherwise be the next file that is opened: its records
// and our lines would land in one file.
void prepare_standard_streams() {
  ::signal(SIGPIPE, SIG_IGN);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    const int opened = ::open("/dev/null", O_RDWR);
    if (opened >= 0 && opened != stream) ::dup2(opened, stream);
  }
}

// Hides all other GPUs. From then on "auto" means a GPU: a number that this machine does not
// have must not end in training on the CPU.
void show_only_chosen_gpus(RunOptions& options) {
  if (options.gpu.empty()) return;
  const std::string list = fmt::format("{}", fmt::join(options.gpu, ","));
  if (machine_gpu_count() == 0) {
    throw UsageError::conflict("--gpu " + list, "this machine has no GPU",
                               "leave the flag out, or use --device cpu");
  }
  ::setenv("CUDA_VISIBLE_DEVICES", list.c_str(), /*replace=*/1);
  if (options.device == "auto") options.device = options.accelerator.device = "cuda";
}

// A program that can do both spawns ranks only where nobody has started any. Returns which of the
// ranks this is.
int look_for_launcher(RunOptions& options) {
  const auto& group = options.process_group;
  const bool by_environment = group.init_method == "env://";
  const auto launch = read_launch_environment({.rank = group.rank,
                                               .world_size = group.world_size,
                                               .needs_address = by_environment,
                                               .program = group.program,
                                               .torchrun = group.torchrun});
  options.launched = launch.launcher != "single";
  if (!options.launched && !by_environment) {
    throw UsageError::conflict("--init-method",
                               "nobody has started the ranks that would meet there",
                               "give --rank and --world-size too, or leave --init-method out");
  }
  if (!options.launched || (options.nprocs == 0 && options.master_port == 0)) return launch.rank;
  const std::string flag = options.nprocs != 0 ? "--nprocs" : "--master-port";
  const bool by_flags = launch.launcher == "options";
  throw UsageError::conflict(flag,
                             "the ranks have been started by " +
                                 (by_flags ? "you, with --rank and --world-size" : launch.launcher),
                             "leave " + flag + " out, or start the program by itself");
}

void say_notes(const RunOptions& options, int rank) {
  const Log log({.rank = rank, .quiet = options.record.quiet});
  for (const auto& note : options.notes) log.info(note);
}

// Starts the processes that the file asks for, where nobody has launched them. What flags say
// counts.
void take_processes_of_config_file(RunOptions& options) {
  if (options.launched) return;
  AccelerateSources sources;
  if (!options.accelerator.config_file.empty()) {
    sources.file = read_config_file(options.accelerator.config_file);
  }
  const auto config = resolve_accelerate_config(sources);
  if (config.num_machines > 1) {
    throw UsageError::conflict(
        options.accelerator.config_file, fmt::format("num_machines is {}", config.num_machines),
        "start it on each of them with accelerate launch --no_python --config_file FILE PROGRAM");
  }
  const bool several = config.distributed_type != DistributedType::kNo;
  if (options.nprocs == 0) options.nprocs = several ? config.num_processes.value_or(1) : 1;
  if (options.master_port == 0) options.master_port = config.main_process_port.value_or(0);
  const bool may_choose_gpus = options.gpu.empty() && config.gpu_ids != "all" && !config.use_cpu;
  if (may_choose_gpus && machine_gpu_count() > 0) {
    ::setenv("CUDA_VISIBLE_DEVICES", config.gpu_ids.c_str(), /*replace=*/1);
  }
}

// What depends on the GPUs that are left.
void choose_processes(RunOptions& options) {
  options.process_group.device = options.device;
  if (options.nprocs > 0) return;
  const int gpus = options.device == "cpu" ? 0 : visible_gpu_count();
  options.nprocs = gpus > 0 ? gpus : kProcessesWithoutGpu;
}

// Told to stop, it dies of the signal, so that a script that runs it stops too.
int exit_status(int code) {
  if (!is_code_of_interruption(code)) return code;
  std::fflush(nullptr);
  SignalGuard::die_of(code - exit_code_of_signal(0));
}

}  // namespace

int run_main(int argc, char** argv, const std::function<void(const RunOptions&)>& run,
             const StageFlags& stage) {
  return exit_status(call_and_report([&] {
    prepare_standard_streams();
    auto command_line = parse_command_line(argc, argv, stage);
    if (!command_line.options) {
      fmt::print("{}", command_line.text);
      return;
    }
    show_only_chosen_gpus(*command_line.options);
    const bool may_join = stage.spawn && stage.launcher;
    const int rank = may_join ? look_for_launcher(*command_line.options) : 0;
    say_notes(*command_line.options, rank);
    if (stage.accelerator || stage.trainer) take_processes_of_config_file(*command_line.options);
    choose_processes(*command_line.options);
    run(*command_line.options);
  }));
}

int launch_main(int argc, char** argv, const std::function<void(const RunOptions&)>& run,
                StageFlags stage) {
  stage.spawn = stage.launcher = true;
  const auto start = [&](const RunOptions& options) {
    if (options.launched) return run(options);
    function_launcher(run, std::tuple(options), {options.nprocs, options.master_port});
  };
  return run_main(argc, argv, start, stage);
}

}  // namespace ladder
