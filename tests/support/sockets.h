// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "ladder/core/unique_fd.h"

namespace ladder {

// The sockets that this process has open, as /proc tells.

// Their numbers, as text.
inline std::set<std::string> socket_inodes() {
  const std::string prefix = "socket:[";
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the descriptor that lists the folder
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!target.starts_with(prefix)) continue;
    inodes.insert(target.substr(prefix.size(), target.size() - prefix.size() - 1));
  }
  return inodes;
}

// The addresses, in the kernel's hexadecimal, at which it listens for TCP connections.
inline std::vector<std::string> listening_addresses() {
  const std::string kListening = "0A";
  const auto own = socket_inodes();
  std::vector<std::string> addresses;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream stream(table);
    std::string line;
    std::getline(stream, line);  // the heading
    while (std::getline(stream, line)) {
      std::istringstream words(line);
      std::vector<std::string> word(10);
      for (auto& one : word) words >> one;
      if (word[3] != kListening || own.count(word[9]) == 0) continue;
      addresses.push_back(word[1].substr(0, word[1].find(':')));
    }
  }
  return addresses;
}

inline bool is_loopback(const std::string& address) {
  return address == "0100007F" || address == "00000000000000000000000001000000" ||
         address == "0000000000000000FFFF00000100007F";
}

// Connects to a port of this machine for a moment. Returns 0, or the errno.
inline int connect_to(int port) {
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* name = reinterpret_cast<const sockaddr*>(&address);
  return connect(client.get(), name, sizeof(address)) == 0 ? 0 : errno;
}

}  // namespace ladder
