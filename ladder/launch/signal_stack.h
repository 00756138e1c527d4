// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <cstddef>
#include <vector>

namespace ladder {

// A stack for the signal handlers of the calling thread, for its lifetime; see sigaltstack(2).
//
// A handler in a process that uses LibTorch needs one, and SA_ONSTACK in its sigaction: the matrix
// products that oneDNN generates keep pointers to their data in the stack pointer, so that the
// frame of a handler on the ordinary stack overwrites weights and the heap. The kernel gives a
// signal for the process to its main thread, unless that blocks it.
//
// Leaves a stack that the thread already has in place.
class SignalStack {
 public:
  SignalStack() : memory_(kBytes) {
    const stack_t own{.ss_sp = memory_.data(), .ss_flags = 0, .ss_size = memory_.size()};
    ::sigaltstack(nullptr, &before_);
    if ((before_.ss_flags & SS_DISABLE) != 0) ::sigaltstack(&own, nullptr);
  }
  ~SignalStack() {
    if ((before_.ss_flags & SS_DISABLE) != 0) ::sigaltstack(&before_, nullptr);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  static constexpr std::size_t kBytes{256 * 1024};  // the registers of AVX-512 and AMX need 12 KiB

  std::vector<std::byte> memory_;
  stack_t before_{};
};

}  // namespace ladder
