// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace ladder {

// How many CPUs this process may use, and how many threads it should therefore start.
//
// The number of CPUs of the machine is the wrong answer twice: a launcher may have bound
// the process to a few of them, and a container may have a quota of CPU time. Threads
// beyond either only wait for each other, and OpenMP's waiting threads spin.

// CPUs that this process may use: those it is bound to, or fewer if its control group has
// a quota. At least 1. Counterpart: Python's os.process_cpu_count, which knows no quotas.
int usable_cpus();

// The CPU quota of this process's control group or any above it, rounded up to whole CPUs;
// nothing if there is none. Reads version 2 (cpu.max) and version 1 (cpu.cfs_quota_us).
// `root` is the folder that stands for "/": tests build small trees of their own.
std::optional<int> cgroup_cpu_limit(const std::string& root = "/");

struct ThreadRequest {
  int requested = 0;         // 0 = choose
  int local_world_size = 1;  // ranks that share this machine
};

struct ThreadChoice {
  int threads;         // at least 1
  std::string reason;  // source of the number: "requested", "2 usable CPUs", ...
};

// The number of threads, from the first of these that is set:
//   1. ThreadRequest::requested;
//   2. OMP_NUM_THREADS, of which the first number counts if it is a list;
//   3. several ranks on this machine: one thread each, as torchrun does;
//   4. usable_cpus().
// Throws UsageError if the request is negative or OMP_NUM_THREADS is not a number.
ThreadChoice choose_threads(const ThreadRequest& request);

}  // namespace ladder
