// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ladder {

// The bytes that this process has sent to other processes since its start: through the TCP sockets
// that are open now, as the kernel counts them (payload without retransmissions), and what backends
// counted besides. Gloo keeps its sockets until the group is shut down, so call this before. What
// NCCL sends from GPU to GPU passes neither and is not counted. Does not block. A kernel
// before 4.19 does not count the bytes of a socket: its TCP bytes are 0.
std::int64_t sent_bytes();

// The part that a backend counts: what it sends to other processes through memory.
void count_sent_bytes(std::int64_t bytes);
std::int64_t counted_sent_bytes();

}  // namespace ladder
