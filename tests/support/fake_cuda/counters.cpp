// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Backtrace.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace fake_cuda {
namespace {

struct Counters {
  std::mutex mutex;
  Counts counts;
};

Counters& counters() {
  static auto& all = *new Counters;  // outlives every destructor
  return all;
}

void show_stack(const std::string& what) {
  static const bool wanted = std::getenv("FAKE_CUDA_STACKS") != nullptr;
  if (wanted) fmt::print(stderr, "fake_cuda: {}\n{}\n", what, c10::get_backtrace(3, 40));
}

// One line per process that used the device.
void report() {
  static bool reported = false;
  const char* path = std::getenv("FAKE_CUDA_REPORT");
  if (path == nullptr || reported) return;
  const auto all = counts();
  if (all.kernels.empty()) return;
  reported = true;
  const nlohmann::json line = {{"pid", ::getpid()},      {"program", program_invocation_short_name},
                               {"kernels", all.kernels}, {"devices", all.devices},
                               {"copies", all.copies},   {"syncs", all.syncs}};
  const std::string text = line.dump() + "\n";
  const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0 || ::write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    fmt::print(stderr, "fake_cuda: FAKE_CUDA_REPORT {}: cannot write\n", path);
  }
  if (file >= 0) ::close(file);
}

const struct AtExit {
  ~AtExit() { report(); }
} at_exit;

}  // namespace

void count_kernel(const std::string& name, c10::Device device) {
  if (is_captured() || is_replayed()) return;
  const std::lock_guard lock(counters().mutex);
  ++counters().counts.devices[device.str()];
  ++counters().counts.kernels[name];
}

void count_copy(const std::string& kind, bool pageable) {
  {
    const std::lock_guard lock(counters().mutex);
    ++counters().counts.copies[kind];
  }
  if (pageable) show_stack("copy: " + kind);
}

void count_sync(const std::string& cause) {
  {
    const std::lock_guard lock(counters().mutex);
    ++counters().counts.syncs[cause];
  }
  show_stack("synchronisation: " + cause);
}

Counts counts() {
  const std::lock_guard lock(counters().mutex);
  return counters().counts;
}

}  // namespace fake_cuda

// Ranks that are forked end by it, and so run no destructors.
extern "C" [[noreturn, gnu::visibility("default")]] void _exit(int status) {
  fake_cuda::report();
  ::syscall(SYS_exit_group, status);
  __builtin_unreachable();
}
