// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/spawn.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/single_threaded.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string_view>
#include <system_error>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/core/system_limits.h"
#include "ladder/launch/exit_status.h"
#include "ladder/launch/listening_socket.h"
#include "ladder/launch/rank_process.h"
#include "ladder/launch/signals.h"
#include "ladder/launch/supervisor.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

std::ptrdiff_t thread_count(const std::string& process) {
  // /proc also lists the threads of an emulator (qemu-user), which the C library did not start.
  if (process == "/proc/self" && __libc_single_threaded != 0) return 1;
  std::error_code ignored;
  return std::distance(fs::directory_iterator(process + "/task", ignored), {});
}

void set_environment(int rank, int world_size, const ListeningSocket& store) {
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), /*replace=*/1);
  };
  for (const char* name : {"RANK", "LOCAL_RANK"}) set(name, std::to_string(rank));
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) set(name, std::to_string(world_size));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(store.port()));
  // Those of the caller's environment, if torchrun or another spawn has once started its shell.
  for (const char* name : {"LADDER_LISTEN_FD", "TORCHELASTIC_USE_AGENT_STORE",
                           "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"}) {
    ::unsetenv(name);
  }
  if (rank == 0) set("LADDER_LISTEN_FD", std::to_string(store.fd()));
}

// Out of memory, the kernel ends a rank, and not the parent that reports it. In a container the
// parent may count more memory: it has loaded the libraries, 350 MB with those of CUDA.
void prefer_for_out_of_memory() { std::ofstream("/proc/self/oom_score_adj") << 1000; }

// Each process would write the text of a buffer once more.
void flush_streams() {
  std::fflush(nullptr);
  std::cout.flush();
  std::clog.flush();
}

class Launch {
 public:
  Launch(const std::function<void(int rank)>& fn, const SpawnOptions& options)
      : fn_(fn), options_(options), store_(options.master_port) {}

  // Returns when all ranks have ended, if none failed.
  void run_all() {
    for (int rank = 0; rank < options_.nprocs; ++rank) {
      ranks_.emplace_back(rank).start(options_.stderr_fd, [&] { run(rank); });
    }
    store_.close();  // rank 0 owns the port from here on
    Supervisor supervisor(ranks_, signals_, options_.grace, options_.save_timeout);
    supervisor.wait_for_all();
    const auto lost = supervisor.lost_checkpoints();
    if (!lost.empty()) Log().warn(lost);
    if (supervisor.signal() != 0) SignalGuard::reraise(supervisor.signal());
    supervisor.throw_failure();
  }

 private:
  // Static objects may belong to threads that no longer exist or still run: no destructors.
  [[noreturn]] void run(int rank) {
    for (auto& other : ranks_) other.close_descriptors();
    set_environment(rank, options_.nprocs, store_);
    if (rank != 0) store_.close();
    signals_.restore_in_child();
    prefer_for_out_of_memory();
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

void require_forkable(const std::string& process) {
  constexpr std::string_view kHint =
      "call spawn first thing in main: before any tensor operation, any call into CUDA and any "
      "thread";
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(process + "/fd", ignored)) {
    const std::string file = fs::read_symlink(entry.path(), ignored).string();
    if (file.starts_with("/dev/nvidia") || file == "/dev/dxg") {
      throw UsageError::conflict("spawn", "this process has already opened " + file, kHint);
    }
  }
  // pthread_join returns a moment before the kernel removes the thread from its list.
  constexpr int kAttempts = 50;
  auto threads = thread_count(process);
  for (int i = 0; i < kAttempts && threads > 1; ++i) {
    ::poll(nullptr, 0, /*milliseconds=*/1);
    threads = thread_count(process);
  }
  if (threads > 1) {  // 0: /proc shows none
    throw UsageError::conflict(
        "spawn",
        fmt::format("this process has {} threads, of which a rank would have one", threads), kHint);
  }
}

void require_not_launched() {
  for (const auto& launcher : kLauncherVariables) {
    if (launcher.launcher == "srun") continue;  // a batch script has SLURM_PROCID too
    for (const char* name : {launcher.rank, launcher.world_size}) {
      const auto value = environment_variable(name);
      if (!value) continue;
      throw UsageError::conflict(
          "spawn", fmt::format("{} is {}: a launcher has already started the ranks", name, *value),
          fmt::format("start this program without {}, or: unset {}", launcher.launcher, name));
    }
  }
}

void spawn(const std::function<void(int rank)>& fn, const SpawnOptions& options) {
  constexpr int kMaxRanks = 256;
  if (options.nprocs < 1 || options.nprocs > kMaxRanks) {
    throw UsageError::out_of_range("nprocs", options.nprocs, fmt::format("1 to {}", kMaxRanks),
                                   "one per GPU, or per core: nproc");
  }
  if (options.grace.count() < 0) {
    throw UsageError::out_of_range("grace", options.grace.count(), "0 milliseconds or more",
                                   "the default is 5000");
  }
  require_not_launched();
  require_forkable();
  require_stack("spawn");
  require_ranks("spawn", options.nprocs, kGroupThreads);
  flush_streams();
  Launch(fn, options).run_all();
}

}  // namespace ladder
