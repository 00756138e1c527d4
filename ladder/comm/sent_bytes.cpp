// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/sent_bytes.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>

namespace ladder {
namespace {

std::atomic<std::int64_t> counted = 0;

// 0 for a descriptor that is no TCP socket.
std::int64_t sent_through(int descriptor) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  constexpr std::size_t kNeeded =
      offsetof(tcp_info, tcpi_bytes_retrans) + sizeof(info.tcpi_bytes_retrans);
  return size < kNeeded ? 0
                        : static_cast<std::int64_t>(info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
}

}  // namespace

std::int64_t sent_bytes() {
  std::int64_t sum = counted;
  std::error_code error;  // descriptors may close meanwhile
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const auto name = entry.path().filename().string();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    sum += sent_through(descriptor);
  }
  return sum;
}

void count_sent_bytes(std::int64_t bytes) { counted += bytes; }

std::int64_t counted_sent_bytes() { return counted; }

}  // namespace ladder
