// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/listening_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <utility>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/sockets.h"

namespace ladder {
namespace {

TEST(ListeningSocket, PicksAFreePortOnTheLoopbackAndIsClosedByExec) {
  const ListeningSocket first;
  const ListeningSocket second;
  EXPECT_GT(first.port(), 0);
  EXPECT_NE(first.port(), second.port());
  sockaddr_in name{};
  socklen_t size = sizeof(name);
  ASSERT_EQ(getsockname(first.fd(), reinterpret_cast<sockaddr*>(&name), &size), 0);
  EXPECT_EQ(ntohl(name.sin_addr.s_addr), INADDR_LOOPBACK);
  EXPECT_NE(fcntl(first.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(ListeningSocket, QueuesConnectionsAndCanTakeItsPortAgainAtOnce) {
  int port = 0;
  {
    const ListeningSocket first;
    port = first.port();
    ASSERT_EQ(connect_to(port), 0);
  }
  EXPECT_EQ(connect_to(port), ECONNREFUSED);
  EXPECT_EQ(ListeningSocket(port).port(), port);
}

TEST(ListeningSocket, HandsItsDescriptorOver) {
  int port = 0;
  UniqueFd released;
  {
    ListeningSocket socket;
    port = socket.port();
    released.reset(socket.release());
    EXPECT_EQ(socket.fd(), -1);
  }
  EXPECT_EQ(connect_to(port), 0);
}

TEST(ListeningSocket, MovesWithItsPort) {
  ListeningSocket first;
  const int port = first.port();
  const ListeningSocket second = std::move(first);
  EXPECT_EQ(second.port(), port);
  EXPECT_EQ(connect_to(port), 0);
}

TEST(ListeningSocket, RefusesAPortInUseAndNumbersThatAreNoPort) {
  const ListeningSocket first;
  const std::string port = std::to_string(first.port());
  EXPECT_ERROR(ListeningSocket(first.port()), DistributedError,
               "MASTER_PORT " + port + ": expected a free port, got 'Address already in use'",
               "(ss -ltnp 'sport = " + port +
                   "' shows it), choose another MASTER_PORT, or use the "
                   "group that this program has made: an Accelerator makes its own");
  EXPECT_ERROR(ListeningSocket(65536), UsageError, "0 (a free one) to 65535, got 65536");
  EXPECT_ERROR(ListeningSocket(-1), UsageError, "got -1");
}

TEST(ListeningSocket, RefusesAddressesOfOtherMachines) {
  EXPECT_ERROR(ListeningSocket(0, "localhost:1"), UsageError,
               "expected a numeric address, such as 127.0.0.1, got 'localhost:1'");
  EXPECT_ERROR(ListeningSocket(0, "192.0.2.1"), SystemError,
               "192.0.2.1 port 0: bind: Cannot assign requested address");
}

TEST(ListeningSocket, HasThePortOfAnIpv6Address) {
  if (std::ifstream("/proc/net/if_inet6").peek() == EOF) GTEST_SKIP() << "no IPv6 here";
  EXPECT_GT(ListeningSocket(0, "::1").port(), 0);
}

}  // namespace
}  // namespace ladder
