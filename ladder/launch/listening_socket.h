// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ladder/core/unique_fd.h"

namespace ladder {

// A TCP port that is bound from construction on.
//
// Between looking for a free port and opening it, another program can take the port. Here the
// socket listens before its number is published; early connections wait in the kernel's queue until
// the first accept(). The serving process gets the descriptor: c10d's TCPStore takes one as
// TCPStoreOptions::masterListenFd.
//
// Listens on one address, so no other machine can reach a port on 127.0.0.1; c10d's own listener
// takes every address. The descriptor is closed by exec (CLOEXEC) and survives a fork.
class ListeningSocket {
 public:
  // Port 0 picks a free one. `address` is a numeric address of this machine, IPv4 or IPv6.
  // Throws DistributedError if another program holds the port, UsageError for a malformed port or
  // address, SystemError if the system refuses (ports below 1024, an address of another machine).
  // Does not block.
  explicit ListeningSocket(int port = 0, const std::string& address = "127.0.0.1");

  int port() const { return port_; }
  int fd() const { return socket_.get(); }

  // Frees the port; the destructor does too.
  void close() { socket_.reset(); }
  // The caller becomes the owner of the descriptor.
  int release() { return socket_.release(); }

 private:
  UniqueFd socket_;
  int port_ = 0;
};

}  // namespace ladder
