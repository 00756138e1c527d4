// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ladder/core/unique_fd.h"

namespace ladder {

// A TCP port that is ours from the moment of construction.
//
// "Look for a free port, tell the others, open it" has a gap in which another program takes the
// port. Here the socket is bound and listening first, and the number is told afterwards; whoever
// connects early waits in the kernel's queue until the first accept(). Hand the descriptor to the
// process that serves: c10d's TCPStore takes one as TCPStoreOptions::masterListenFd.
//
// Listens on one address only, so that nobody outside this machine can reach a port on 127.0.0.1;
// c10d's own listener takes every address. The descriptor is closed by exec (CLOEXEC); it survives
// a fork.
class ListeningSocket {
 public:
  // Port 0 takes a free one. `address` is a numeric address of this machine, IPv4 or IPv6.
  // Throws DistributedError if another program holds the port, UsageError if the port or the
  // address is none, and SystemError if the system refuses (ports below 1024, a foreign address).
  // Waits for nothing.
  explicit ListeningSocket(int port = 0, const std::string& address = "127.0.0.1");

  int port() const { return port_; }
  int fd() const { return socket_.get(); }

  // Gives the port back; the destructor does too.
  void close() { socket_.reset(); }
  // Hands the descriptor over: closing it is now the caller's duty.
  int release() { return socket_.release(); }

 private:
  UniqueFd socket_;
  int port_ = 0;
};

}  // namespace ladder
