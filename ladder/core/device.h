// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "ladder/core/gpus.h"
#include "ladder/core/log.h"
#include "ladder/core/threads.h"

namespace ladder {

// The GPUs that CUDA finds; devices and backends follow this count. First call into CUDA: this
// process must not fork afterwards.
int gpu_count();

// The device of `request`: "auto", "cpu", "cuda" or "cuda:1".
//
// "auto" is a GPU, or the CPU with one log line if there is none. "auto" and "cuda" choose GPU
// `local_rank`, the rank on this machine; ranks share GPUs if there are fewer. (The rank among all
// processes would be wrong on every machine but the first.) The GPU becomes the current one of this
// thread. If CUDA finds fewer GPUs than the machine has device files, local rank 0 logs a warning.
// Throws UsageError for another text and for a GPU that CUDA does not find. Calls CUDA, unless the
// request is "cpu".
c10::Device choose_device(const std::string& request, const Log& log, int local_rank = 0,
                          const GpuSearch& search = {});

// The devices of one process's replicas. `requests` are GPU numbers ("0"), "cuda:1" or "cpu", which
// may repeat. Empty means all GPUs, or the one GPU of `device`, or two replicas on the CPU if there
// is no GPU or `device` is "cpu". Throws UsageError like choose_device.
std::vector<c10::Device> choose_devices(const std::vector<std::string>& requests,
                                        const std::string& device, const Log& log,
                                        const GpuSearch& search = {});

// The device that gathers the outputs of such replicas: `request`, or the first if it is empty.
c10::Device choose_output_device(const std::string& request,
                                 const std::vector<c10::Device>& devices);

// `tensor` on `device`. From the CPU to a GPU it goes through page-locked memory: the copy does not
// wait for the GPU, and the caller not for the copy. Costs a copy on the CPU, so it is for small
// tensors. Python's counterpart: tensor.pin_memory().to(device, non_blocking=True).
at::Tensor send_to_device(const at::Tensor& tensor, const c10::Device& device);

// Prepares a process for its first tensor: chooses the number of threads (see choose_threads), sets
// it in LibTorch, and tunes the allocator (see tune_allocator). Returns the choice. Starts threads:
// this process must not fork afterwards.
ThreadChoice prepare_process(const ThreadRequest& request);

}  // namespace ladder
