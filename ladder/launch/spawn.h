// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>

#include "ladder/core/error.h"  // thrown; cppyy loses the texts of unknown classes
#include "ladder/launch/rank_status.h"

namespace ladder {

// Threads that a process group starts in a rank: of Gloo, of the store.
inline constexpr int kGroupThreads = 6;

struct SpawnOptions {
  int nprocs = 2;                         // ranks, 1 to 256, all on this machine
  int master_port = 0;                    // rendezvous port; 0 picks a free one
  std::chrono::milliseconds grace{5000};  // from SIGTERM to SIGKILL
  // A rank that saves a checkpoint gets this time instead, from the begin of the save.
  std::chrono::milliseconds save_timeout = kSaveTimeout;
  int stderr_fd = STDERR_FILENO;  // the standard error of the ranks; not owned
};

// Runs `fn(rank)` in `nprocs` processes at once and waits for all of them. They are copies of this
// process (fork), so `fn` sees every variable as it was at the call. A rank ends when `fn` returns:
// neither the code after the call of spawn nor destructors of statics run in it.
//
//     spawn([&](int rank) { train(rank, options); }, {.nprocs = 4});
//
// Python's counterpart: torch.multiprocessing.spawn with the start method "fork".
//
// Call it before any tensor operation and any call into CUDA: see require_forkable. Throws
// UsageError (exit code 2) if this process cannot fork or is a rank of torchrun or mpirun,
// DistributedError for a port in use, SystemError for a failed fork, after which no rank is left,
// and before the first one for limits that are too low for all ranks together.
//
// The state of a rank:
//   RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR (127.0.0.1), MASTER_PORT   as under
//       torchrun. MASTER_PORT is bound before the first fork, so no other program can take it.
//   LADDER_LISTEN_FD   on rank 0: the descriptor that already listens on MASTER_PORT.
//   A process group of its own, and an empty standard input. No signal is blocked; handlers are
//       the defaults; ignored signals stay ignored. SIGPIPE is ignored: a write without a reader is
//       an error of that write.
// Ranks share the standard output and error of this process. Lines do not mix if each is one write
// of at most 4096 bytes, as those of Log, ProgressBar and call_and_report.
//
// The end (supervisor.h):
//   All ranks return: spawn returns.
//   A rank throws: it prints the error and ends with its exit code (see call_and_report). The
//       others get SIGTERM, after `grace` SIGKILL. Then spawn throws a ChildError of that code,
//       which quotes the error. Exit code 4, a lost rank, is a consequence: the others then have
//       `grace` to fail with the cause.
//   A rank is killed: the same, and a DistributedError that names the signal.
//   A rank that saves a checkpoint is not killed before `save_timeout`, or a second signal.
//   One of kStopSignals or SIGQUIT to this process: every rank gets it, after `grace` or at a
//       second signal (half a second later or more) SIGKILL. Then this process ends by that signal.
//   This process is killed: the kernel kills the ranks. SIGTSTP and SIGCONT reach the ranks too.
// Processes that a rank started are killed when the rank ends, unless they left its group.
void spawn(const std::function<void(int rank)>& fn, const SpawnOptions& options = {});

// Throws UsageError unless this process may fork children that continue to work: it has one thread
// (one that was joined up to 50 ms ago does not count) and no open GPU. `process` replaces
// "/proc/self" in tests.
void require_forkable(const std::string& process = "/proc/self");

// Throws UsageError if torchrun or mpirun started this process as one of its ranks.
void require_not_launched();

}  // namespace ladder
