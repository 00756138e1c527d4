// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/spawn.h"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <string>

#include "ladder/core/error.h"
#include "ladder/core/exit_status.h"
#include "ladder/core/listening_socket.h"
#include "ladder/launch/fork_guard.h"
#include "ladder/launch/rank_process.h"
#include "ladder/launch/signal_guard.h"
#include "ladder/launch/supervisor.h"

namespace ladder {
namespace {

constexpr int kMostRanks = 256;

void require_valid(const SpawnOptions& options) {
  if (options.nprocs < 1 || options.nprocs > kMostRanks) {
    throw UsageError::out_of_range("nprocs", options.nprocs, "1 to " + std::to_string(kMostRanks));
  }
  if (options.grace.count() < 0) {
    throw UsageError::out_of_range("grace", options.grace.count(), "0 milliseconds or more");
  }
}

void set_variable(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), /*replace=*/1);
}

void set_environment(int rank, int world_size, const ListeningSocket& store) {
  for (const char* name : {"RANK", "LOCAL_RANK"}) set_variable(name, std::to_string(rank));
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
    set_variable(name, std::to_string(world_size));
  }
  set_variable("MASTER_ADDR", "127.0.0.1");
  set_variable("MASTER_PORT", std::to_string(store.port()));
  ::unsetenv("LADDER_LISTEN_FD");
  if (rank == 0) set_variable("LADDER_LISTEN_FD", std::to_string(store.fd()));
}

// What waits in a buffer would be written once a process.
void flush_streams() {
  std::fflush(nullptr);
  std::cout.flush();
  std::clog.flush();
}

// All ranks of one call, while they are being started.
class Launch {
 public:
  Launch(const std::function<void(int rank)>& fn, const SpawnOptions& options)
      : fn_(fn), options_(options), store_(options.master_port) {}

  // The port belongs to rank 0 from here on.
  void start_all() {
    for (int rank = 0; rank < options_.nprocs; ++rank) {
      ranks_.emplace_back(rank).start(errors_of(rank), [&] { run(rank); });
    }
    store_.close();
  }

  // Returns if all went well.
  void wait() {
    Supervisor supervisor(ranks_, signals_,
                          {.grace = options_.grace, .stderr_fd = options_.stderr_fd});
    supervisor.wait_for_all();
    if (supervisor.signal() != 0) SignalGuard::reraise(supervisor.signal());
    supervisor.throw_failure();
  }

 private:
  static constexpr int kPipe = -1;

  int errors_of(int rank) const {
    return rank == 0 && ::isatty(options_.stderr_fd) != 0 ? options_.stderr_fd : kPipe;
  }

  // Static objects may belong to threads that no longer exist or still run: no destructors.
  [[noreturn]] void run(int rank) {
    for (auto& other : ranks_) other.close_descriptors();
    set_environment(rank, options_.nprocs, store_);
    if (rank != 0) store_.close();
    signals_.restore_in_child();
    const int code = call_and_report([&] { fn_(rank); });
    flush_streams();
    ::_exit(code);
  }

  const std::function<void(int rank)>& fn_;
  const SpawnOptions& options_;
  ListeningSocket store_;
  SignalGuard signals_;
  std::deque<RankProcess> ranks_;
};

}  // namespace

void spawn(const std::function<void(int rank)>& fn, const SpawnOptions& options) {
  require_valid(options);
  require_not_launched();
  require_forkable();
  flush_streams();
  Launch launch(fn, options);
  launch.start_all();
  launch.wait();
}

}  // namespace ladder
