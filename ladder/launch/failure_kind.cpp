// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/failure_kind.h"

#include <cxxabi.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <system_error>
#include <typeinfo>

#include "ladder/core/environment.h"
#include "ladder/launch/rank_status.h"

namespace ladder {
namespace {

using enum FailureKind;

struct KnownException {
  std::string_view type;  // the most derived one
  std::string_view text;  // part of what(); empty = the type decides
  FailureKind kind;
};

// This file is torch-free, and LibTorch does not install Gloo's headers: types are compared by
// name. Above texts: the source files that build them.
constexpr std::array<KnownException, 19> kKnownExceptions = {{
    {"c10::OutOfMemoryError", "", kOutOfMemory},
    {"c10::DistNetworkError", "", kLostPeer},
    {"c10::DistStoreError", "", kLostPeer},
    {"c10d::SocketError", "", kLostPeer},
    {"c10d::TimeoutError", "", kLostPeer},
    {"gloo::IoException", "", kLostPeer},
    // c10d's NCCLUtils.cpp and ProcessGroupNCCL.cpp; NCCL's checks.h
    {"c10::DistBackendError", "ncclRemoteError: ", kLostPeer},
    {"c10::DistBackendError", "ncclSystemError: ", kLostPeer},
    {"c10::DistBackendError", "Watchdog caught collective operation timeout: ", kLostPeer},
    {"c10::DistBackendError", " retrieving ncclUniqueId", kLostPeer},
    {"c10::DistBackendError", "NCCL communicator was aborted on rank ", kLostPeer},
    {"c10::DistBackendError", "'out of memory'", kOutOfMemory},
    // c10d's ProcessGroupGloo.cpp and FileStore.cpp
    {"c10::Error", "Gloo connectFullMesh failed with ", kLostPeer},
    {"c10::Error", "Wait timeout", kLostPeer},
    {"c10::Error", "Timeout waiting for key: ", kLostPeer},
    // PyTorch's alloc_cpu.cpp, CUDABlas.cpp and CUDAException.cpp
    {"c10::Error", "DefaultCPUAllocator: can't allocate memory", kOutOfMemory},
    {"c10::Error", "CUBLAS_STATUS_ALLOC_FAILED", kOutOfMemory},
    {"c10::AcceleratorError", "CUDA error: out of memory", kOutOfMemory},
    {"dnnl::error", "could not ", kOutOfMemory},  // oneDNN reports no reason
}};

std::string type_name(const std::exception& error) {
  struct Free {
    void operator()(char* text) const { std::free(text); }
  };
  const char* mangled = typeid(error).name();
  const std::unique_ptr<char, Free> name(abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr));
  return name ? name.get() : mangled;
}

}  // namespace

int limit_reached(const std::exception& error) {
  const std::string_view text = error.what();
  for (const int limit : {EMFILE, ENFILE}) {
    if (text.find(std::strerror(limit)) != text.npos) return limit;
  }
  const auto* const of_thread = dynamic_cast<const std::system_error*>(&error);
  return of_thread != nullptr && of_thread->code().value() == EAGAIN ? EAGAIN : 0;
}

FailureKind failure_kind(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return kOutOfMemory;
  if (limit_reached(error) != 0) return kLimit;
  const std::string type = type_name(error);
  const std::string_view text = error.what();
  const auto* const known = std::find_if(
      kKnownExceptions.begin(), kKnownExceptions.end(), [&](const KnownException& exception) {
        return exception.type == type && text.find(exception.text) != std::string_view::npos;
      });
  return known == kKnownExceptions.end() ? kLocal : known->kind;
}

std::string message_of(const std::exception& error) {
  std::string text = error.what();
  for (const std::string_view trace : {"\nException raised from ", "\nframe #"}) {
    text.resize(std::min(text.size(), text.find(trace)));
  }
  while (text.ends_with('\n')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

DistributedError peer_lost(std::string_view text) {
  return DistributedError::of("collective" + in_current_step(), "all ranks to take part",
                              fmt::format("\"{}\"", text),
                              "see the first error of the other ranks; " + step_after_failure());
}

std::string step_after_failure() {
  constexpr const char* kByHand = "start the program again; with checkpoints it can resume";
  try {
    const auto most = environment_integer("TORCHELASTIC_MAX_RESTARTS", 0);
    if (!most) return kByHand;
    if (*most == 0) return "torchrun does not restart the ranks (--max-restarts 0)";
    const auto done = environment_integer("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
    if (done < *most) {
      return fmt::format("torchrun will restart the ranks (restart {} of {})", done + 1, *most);
    }
    return fmt::format("no restarts are left ({} of {} done)", done, *most);
  } catch (const UsageError&) {  // a malformed variable
    return kByHand;
  }
}

}  // namespace ladder
