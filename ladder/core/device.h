// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "ladder/core/log.h"
#include "ladder/core/threads.h"

namespace ladder {

// The device that `request` names: "auto", "cpu", "cuda" or "cuda:1".
//
// "auto" is the first GPU, or the CPU with one log line when there is none. Throws UsageError
// for another text and for a GPU that this machine does not have. First call into CUDA:
// nothing may fork after it.
c10::Device choose_device(const std::string& request, const Log& log);

// What every process does before its first tensor: chooses the number of threads (see
// choose_threads), tells LibTorch, and sets up the allocator (see tune_allocator).
// Returns the choice. Starts threads: nothing may fork after it.
ThreadChoice prepare_process(const ThreadRequest& request);

}  // namespace ladder
