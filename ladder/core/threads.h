// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace ladder {

// The number of CPUs that this process may use, and the number of threads that follows.
//
// The machine's number of CPUs is wrong twice: a launcher may bind the process to a few of them,
// and a container may have a quota of CPU time. Threads beyond either wait for each other, and
// OpenMP's waiting threads spin.

// The CPUs that this process is bound to, or fewer if its control group has a quota. At least 1.
// Counterpart: Python's os.process_cpu_count, which ignores quotas.
int usable_cpus();

// The CPU quota of this process's control group or any above it, rounded up to whole CPUs;
// nothing if there is none. Reads version 2 (cpu.max) and version 1 (cpu.cfs_quota_us).
// `root` replaces "/" in tests.
std::optional<int> cgroup_cpu_limit(const std::string& root = "/");

struct ThreadRequest {
  int requested = 0;         // 0 chooses
  int local_world_size = 0;  // ranks on this machine; 0 takes LOCAL_WORLD_SIZE, as torchrun and
                             // spawn set it, else 1
};

struct ThreadChoice {
  int threads;         // at least 1
  std::string reason;  // source of the number: "requested", "2 usable CPUs", ...; and that it is
                       // slow, if there are more threads than CPUs
};

// The number of threads, from the first of these that is set:
//   1. ThreadRequest::requested;
//   2. OMP_NUM_THREADS, the first number of a list;
//   3. several ranks on this machine: one thread each, as under torchrun;
//   4. usable_cpus(), at most SLURM_CPUS_ON_NODE: SLURM may allocate CPUs without binding to them.
// Throws UsageError if the request is negative, or a variable is not a number.
ThreadChoice choose_threads(const ThreadRequest& request);

}  // namespace ladder
