// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "ladder/core/log.h"
#include "ladder/core/threads.h"

namespace ladder {

// The device that `request` names: "auto", "cpu", "cuda" or "cuda:1".
//
// "auto" is a GPU, or the CPU with one log line when there is none. "auto" and "cuda" take the
// GPU of the process's place on its machine, `local_rank`; with more ranks than GPUs they share.
// (The rank among all processes would be wrong on every machine but the first.) The GPU becomes
// the current one of this thread. Throws UsageError for another text and for a GPU that this
// machine does not have. First call into CUDA: nothing may fork after it.
c10::Device choose_device(const std::string& request, const Log& log, int local_rank = 0);

// The devices of one process's replicas. `requests` are GPU numbers ("0"), "cuda:1" or "cpu", which
// may repeat; empty means all GPUs, or two replicas on the CPU when there is none or `device` is
// "cpu"; a GPU named by `device` is the only one. Throws UsageError like choose_device.
std::vector<c10::Device> choose_devices(const std::vector<std::string>& requests,
                                        const std::string& device, const Log& log);

// Where the outputs of such replicas meet: `request`, or the first device if it is empty.
c10::Device choose_output_device(const std::string& request,
                                 const std::vector<c10::Device>& devices);

// What every process does before its first tensor: chooses the number of threads (see
// choose_threads), tells LibTorch, and sets up the allocator (see tune_allocator).
// Returns the choice. Starts threads: nothing may fork after it.
ThreadChoice prepare_process(const ThreadRequest& request);

}  // namespace ladder
