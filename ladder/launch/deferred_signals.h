// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <csignal>
#include <cstddef>

namespace ladder {

// During its lifetime SIGTERM, SIGINT and SIGHUP wait: a file that is being written is finished,
// and then the signal ends the process. A second signal of the kind ends it at once. Signals that
// the program ignores or handles stay as they are. One object at a time.
class DeferredSignals {
 public:
  DeferredSignals() {
    struct sigaction remember{};
    remember.sa_handler = [](int signal) { pending() = signal; };
    remember.sa_flags = static_cast<int>(SA_RESETHAND | SA_ONSTACK | SA_RESTART);
    pending() = 0;
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler == SIG_DFL) ::sigaction(kSignals[i], &remember, nullptr);
    }
  }
  ~DeferredSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      if (before_[i].sa_handler == SIG_DFL) ::sigaction(kSignals[i], &before_[i], nullptr);
    }
    if (pending() != 0) ::raise(pending());
  }
  DeferredSignals(const DeferredSignals&) = delete;
  DeferredSignals& operator=(const DeferredSignals&) = delete;

 private:
  static constexpr std::array kSignals = {SIGTERM, SIGINT, SIGHUP};

  static volatile std::sig_atomic_t& pending() {
    static volatile std::sig_atomic_t signal = 0;
    return signal;
  }

  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace ladder
