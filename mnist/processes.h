// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "mnist/options.h"

namespace mnist {

// After the command line: which GPUs the program sees, and who starts its ranks. Throws UsageError
// if flags contradict the machine or the launcher. Does not initialise CUDA.
void choose_processes(SingleOptions& options);
inline void choose_processes(ReplicaOptions& options) {
  choose_processes(static_cast<SingleOptions&>(options));
}
void choose_processes(SpawnedOptions& options);
inline void choose_processes(FullyShardedRunOptions& options) {
  choose_processes(static_cast<SpawnedOptions&>(options));
}
void choose_processes(LaunchedOptions& options);
void choose_processes(AmpOptions& options);
void choose_processes(PipelineRunOptions& options);
// Of other options: declared in accelerated_main.h, and not that of a base.
template <typename Options>
void choose_processes(Options& options) = delete;

// The parts of choose_processes: hides all other GPUs than those of --gpu, and logs the notes.
void show_only_chosen_gpus(SingleOptions& options);
void log_notes(const SingleOptions& options, int rank);
// For a program that starts ranks only if no launcher has (rank_processes.cpp):
void find_launcher(GroupOptions& group, ProcessOptions& processes);
void complete_nprocs(const GroupOptions& group, ProcessOptions& processes);

}  // namespace mnist
