// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "ladder/core/error.h"

namespace ladder {

// Exceptions other than ladder::Error: of LibTorch, Gloo, NCCL and the standard library; and the
// error of a rank that lost another one.

enum class FailureKind {
  kLocal,        // this rank is the cause: an invalid argument, a refused system call, a bug
  kOutOfMemory,  // this rank is the cause
  kLimit,        // this rank is the cause: too many open files, or no further thread
  kLostPeer,     // another rank ended or is late, or the network failed
};

// Decided by the type of `error`, and by its text only where one type serves several kinds: all
// errors of NCCL are a c10::DistBackendError. Unrecognised exceptions are kLocal.
FailureKind failure_kind(const std::exception& error);

// The errno of a limit of the system (system_limits.h) that an exception of another library
// reports: EMFILE or ENFILE by its text, EAGAIN of a new thread by its type; else 0.
int limit_reached(const std::exception& error);

// The text of `error` on one line, without the stack trace that LibTorch appends.
std::string message_of(const std::exception& error);

// The error of a collective or a store that lost another rank, in the current_step() if there is
// one. `text` is one line of the backend's message. The hint ends with what the launcher does next.
DistributedError peer_lost(std::string_view text);

// The next step after an error of a rank: "torchrun will restart the ranks (restart 1 of 5)", by
// torchrun's variables.
std::string step_after_failure();

}  // namespace ladder
