// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace ladder {

// Exceptions other than ladder::Error: of LibTorch, Gloo, NCCL and the standard library.

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

}  // namespace ladder
