// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "ladder/core/unique_fd.h"

namespace ladder {

// Boot of the machine, process namespace and user: processes that agree in all three see each
// other.
std::string host_identity();

// Finds out which ranks have ended, for errors about a lost rank. A rank can watch the processes of
// its own machine; of the others it knows the address.
class PeerWatch {
 public:
  // A collective: returns the texts of all ranks, in rank order.
  using AllGather = std::function<std::vector<std::string>(const std::string& own)>;

  // `address`: this rank's, as the backend's messages have it. A collective.
  PeerWatch(int rank, const std::string& address, const AllGather& all_gather);

  // Updates known_ranks().ended (launch/lost_ranks.h). If no rank has ended, it waits for one:
  // sockets close shortly before their process has ended.
  void look(std::chrono::milliseconds longest_wait) const;

 private:
  std::vector<UniqueFd> processes_;  // readable when the process has ended; none for other machines
};

}  // namespace ladder
