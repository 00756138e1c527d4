// SPDX-License-Identifier: Apache-2.0
#include "mnist/processes.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cstdlib>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/core/gpus.h"
#include "ladder/core/log.h"

namespace mnist {

using namespace ladder;

// "auto" then means a GPU: a wrong number must not end in training on the CPU.
void show_only_chosen_gpus(SingleOptions& options) {
  if (options.gpu.empty()) return;
  const std::string list = fmt::format("{}", fmt::join(options.gpu, ","));
  require_gpus_of_launcher("--gpu", list);
  if (machine_gpu_count() == 0) {
    throw UsageError::conflict("--gpu " + list, no_gpu_reason(),
                               "omit --gpu: without a GPU, programs train on the CPU");
  }
  ::setenv("CUDA_VISIBLE_DEVICES", list.c_str(), /*replace=*/1);
  if (options.device == "auto") options.device = "cuda";
}

void log_notes(const SingleOptions& options, int rank) {
  const Log log({.rank = rank, .quiet = options.record.quiet});
  for (const auto& note : options.notes) log.info(note);
}

namespace {

// Stages 0 and 1 are one process. A launcher starts copies.
void note_copies(SingleOptions& options) {
  for (const auto& launcher : kLauncherVariables) {
    const auto rank = environment_variable(launcher.rank);
    const auto size = environment_variable(launcher.world_size);
    if (!rank || !size || *size == "1") continue;
    options.notes.push_back(
        fmt::format("{}={}, {}={}: each of these processes trains alone, on all images; stages 2 "
                    "to 6 divide the work",
                    launcher.rank, *rank, launcher.world_size, *size));
  }
}

}  // namespace

void choose_processes(SingleOptions& options) {
  show_only_chosen_gpus(options);
  note_copies(options);
  log_notes(options, /*rank=*/0);
}

}  // namespace mnist
