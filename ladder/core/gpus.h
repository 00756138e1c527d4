// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace ladder {

// The number of GPUs, counted without CUDA: a process that has called CUDA (cudaGetDeviceCount is
// enough) cannot fork working children, so a launcher with one rank per GPU counts device files.
// `dev` replaces "/dev" in tests.

// GPUs whose device files (nvidia0, nvidia1, ...) this process can see; 1 under Windows' Linux,
// where one file (dxg) represents all GPUs.
int machine_gpu_count(const std::string& dev = "/dev");

// The GPUs among them that CUDA_VISIBLE_DEVICES selects. Equals torch.cuda.device_count().
//
// CUDA's rules for that list: it ends at the first entry that names no GPU of this machine; "-1",
// an empty list, and a list that names a GPU twice select none. Entries such as GPU-8932f937 are
// not checked. Of several MIG entries CUDA uses one.
int visible_gpu_count(const std::string& dev = "/dev");

// Throws UsageError if a launcher has started this process with another CUDA_VISIBLE_DEVICES than
// `list`, such as "0,1": the order counts too, because local rank k uses GPU k of the list.
// `where` begins the message. A launcher is recognised by its variables of rank and world size, and
// accelerate launch with one process by ACCELERATE_MIXED_PRECISION.
void require_gpus_of_launcher(std::string_view where, std::string_view list);

}  // namespace ladder
