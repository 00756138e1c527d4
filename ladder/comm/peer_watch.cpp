// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/peer_watch.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "ladder/launch/lost_ranks.h"

namespace ladder {

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const auto processes = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  if (boot.empty() || error) return fmt::format("unknown/{}", ::getpid());
  return fmt::format("{}/{}/{}", boot, processes, ::geteuid());
}

PeerWatch::PeerWatch(int rank, const std::string& address, const AllGather& all_gather) {
  const auto here = host_identity();
  KnownRanks known{.own = rank};
  for (const auto& text : all_gather(fmt::format("{} {} {}", here, ::getpid(), address))) {
    std::string host;
    int pid = 0;
    std::istringstream(text) >> host >> pid >> known.addresses.emplace_back();
    const bool watched = host == here && pid != ::getpid();
    processes_.emplace_back(watched ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1);
  }
  known_ranks() = std::move(known);
}

void PeerWatch::look(std::chrono::milliseconds longest_wait) const {
  std::vector<pollfd> polled;
  for (const auto& process : processes_) {  // poll ignores a negative descriptor
    polled.push_back({.fd = process.get(), .events = POLLIN, .revents = 0});
  }
  ::poll(polled.data(), polled.size(), static_cast<int>(longest_wait.count()));
  auto& ended = known_ranks().ended;
  ended.clear();
  for (std::size_t rank = 0; rank < polled.size(); ++rank) {
    if (polled[rank].revents != 0) ended.push_back(static_cast<int>(rank));
  }
}

}  // namespace ladder
