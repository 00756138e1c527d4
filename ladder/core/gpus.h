// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace ladder {

// The number of GPUs, counted without CUDA: a process that has called CUDA (cudaGetDeviceCount is
// enough) cannot fork working children, so a launcher with one rank per GPU counts device files.
// It is an expectation: with a broken driver CUDA finds fewer. Device and backend of a rank follow
// CUDA alone (gpu_count in device.h), and a difference is reported (missing_gpus).

// Whether this program has loaded the CUDA runtime, as with any LibTorch but one for CPUs alone.
// Does not call it.
bool has_cuda_runtime();

// Where GPUs are looked for; other values are for tests.
struct GpuSearch {
  std::string dev = "/dev";
  bool has_cuda = has_cuda_runtime();  // without it no GPU counts
};

// GPUs whose device files (nvidia0, nvidia1, ...) this process can see; 1 under Windows' Linux,
// where one file (dxg) represents all GPUs.
int machine_gpu_count(const GpuSearch& search = {});

// The GPUs among them that CUDA_VISIBLE_DEVICES selects. Equals torch.cuda.device_count() where the
// driver works.
//
// CUDA's rules for that list: it ends at the first entry that names no GPU of this machine; "-1",
// an empty list, and a list that names a GPU twice select none. Entries such as GPU-8932f937 are
// not checked. Of several MIG entries CUDA uses one.
int visible_gpu_count(const GpuSearch& search = {});

// Why machine_gpu_count is 0: "this machine has no GPU", or "this LibTorch has no CUDA".
std::string no_gpu_reason(const GpuSearch& search = {});

// Why a program that finds `found` GPUs has fewer than expected: "2 GPUs are visible, but CUDA
// finds 1". Empty if it has all.
std::string missing_gpus(int found, const GpuSearch& search = {});

// Throws UsageError if a launcher has started this process with another CUDA_VISIBLE_DEVICES than
// `list`, such as "0,1": the order counts too, because local rank k uses GPU k of the list.
// `where` begins the message. A launcher is recognised by its variables of rank and world size, and
// accelerate launch with one process by ACCELERATE_MIXED_PRECISION.
void require_gpus_of_launcher(std::string_view where, std::string_view list);

}  // namespace ladder
