// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <chrono>
#include <functional>

namespace ladder {

struct SpawnOptions {
  int nprocs = 2;                         // ranks, 1 to 256, all on this machine
  int master_port = 0;                    // where the ranks meet; 0 = a free port
  std::chrono::milliseconds grace{5000};  // from a polite request to end until SIGKILL
  int stderr_fd = STDERR_FILENO;          // where what ranks write to their stderr goes; not owned
};

// Runs `fn(rank)` in `nprocs` processes at once and waits for all of them. They are copies of
// this process (fork), so `fn` sees every variable as it was at the call. A rank ends when `fn`
// does: nothing behind the call of spawn runs in it, and destructors of statics do not either.
//
//     spawn([&](int rank) { train(rank, options); }, {.nprocs = 4});
//
// Python's counterpart: torch.multiprocessing.spawn with the start method "fork".
//
// Call it before any tensor operation and any call into CUDA. A fork copies one thread only, so
// LibTorch's thread pool would be dead in the copies, and CUDA refuses to work in them. Processes
// with a second thread or an open GPU are refused, and so are those that torchrun or mpirun
// started as ranks: UsageError (exit code 2). A port in use is a DistributedError. A failed fork is
// a SystemError, after which no rank is left.
//
// What a rank finds:
//   RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR (127.0.0.1), MASTER_PORT   as
//       torchrun sets them. MASTER_PORT is bound before the first fork: nobody can take it.
//   LADDER_LISTEN_FD   on rank 0: the descriptor that already listens on MASTER_PORT.
//   A process group of its own, no signal blocked, default handlers (what was ignored stays
//       ignored, as after exec), and an empty standard input.
// The standard output is shared. Lines of the standard error pass through this process, which
// keeps them whole up to 4096 bytes, and remembers the last one. On a terminal rank 0 writes
// directly, so that it can draw its progress bar.
//
// How it ends:
//   All ranks return: spawn returns.
//   A rank throws: it prints the error and ends with its exit code (see call_and_report).
//       The others get SIGTERM, after `grace` SIGKILL. Then spawn throws a ChildError of that same
//       code.
//   A rank is killed: the same, and a DistributedError that names the signal.
//   Exit code 4 means "I lost another rank", which is a consequence: the others then have `grace`
//       to say the cause before they get SIGTERM. Ranks that say nothing are named as hanging.
//   SIGINT, SIGTERM, SIGHUP or SIGQUIT arrives here: every rank gets it, after `grace` or at a
//       second signal SIGKILL. One within half a second of the first is its echo and does not
//       count. Then this process dies of that signal, as shells expect.
//   This process is killed: the kernel kills the ranks.
//   Ctrl-Z stops this process alone: ranks have process groups of their own and go on.
// Processes that a rank started are killed when the rank ends, unless they left its group.
void spawn(const std::function<void(int rank)>& fn, const SpawnOptions& options = {});

}  // namespace ladder
