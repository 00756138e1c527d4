// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/listening_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "ladder/core/error.h"

namespace ladder {
namespace {

using AddressInfo = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressInfo resolved(const std::string& address, int port) {
  constexpr int kLargestPort = 65535;
  if (port < 0 || port > kLargestPort) {
    throw UsageError::out_of_range("master_port", port, "0 (a free one) to 65535",
                                   "0 picks a free one");
  }
  addrinfo wanted{};
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) {
    throw UsageError::malformed("MASTER_ADDR", "a numeric address, such as 127.0.0.1", address,
                                "getent hosts NAME shows the address of a name");
  }
  return {found, ::freeaddrinfo};
}

[[noreturn]] void refuse(std::string_view operation, const std::string& address, int port) {
  const int reason = errno;
  if (reason != EADDRINUSE) {
    const char* hint = "";
    if (reason == EACCES) hint = "ports below 1024 are for root: choose a higher one";
    if (reason == EADDRNOTAVAIL) hint = "it is no address of this machine: ip address";
    throw SystemError::failed(operation, fmt::format("{} port {}", address, port), reason, hint);
  }
  throw DistributedError::of(
      fmt::format("MASTER_PORT {}", port), "a free port",
      fmt::format("'{}'", std::strerror(EADDRINUSE)),
      fmt::format(
          "end the program that uses it, or a second rank 0 (ss -ltnp 'sport = {}' shows it), "
          "choose another MASTER_PORT, or use the group that this program has made: an Accelerator "
          "makes its own (process_group())",
          port));
}

}  // namespace

ListeningSocket::ListeningSocket(int port, const std::string& address) {
  const AddressInfo where = resolved(address, port);
  socket_.reset(::socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket_) refuse("socket", address, port);
  const int yes = 1;  // a port of a program that has just ended is free
  ::setsockopt(fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(fd(), where->ai_addr, where->ai_addrlen) != 0) refuse("bind", address, port);
  if (::listen(fd(), SOMAXCONN) != 0) refuse("listen", address, port);
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  ::getsockname(fd(), reinterpret_cast<sockaddr*>(&name), &size);
  port_ = name.ss_family == AF_INET6 ? ntohs(reinterpret_cast<sockaddr_in6*>(&name)->sin6_port)
                                     : ntohs(reinterpret_cast<sockaddr_in*>(&name)->sin_port);
}

}  // namespace ladder
