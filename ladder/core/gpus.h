// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ladder {

// How many GPUs there are, counted without CUDA.
//
// A process that has called CUDA cannot fork working children, and even cudaGetDeviceCount is
// such a call. A launcher that wants one rank a GPU counts device files instead.
//
// `dev` is the folder that stands for "/dev": tests use one of their own.

// GPUs whose device files (nvidia0, nvidia1, ...) this process can see. Under Windows' Linux,
// which shows all GPUs as one file (dxg), 1.
int machine_gpu_count(const std::string& dev = "/dev");

// The part of them that CUDA_VISIBLE_DEVICES leaves: what torch.cuda.device_count() says.
// Follows CUDA's rules for that list: it ends at the first entry that names no GPU of this
// machine, "-1" and an empty list leave none, and so does a list that names a GPU twice. Entries
// like GPU-8932f937 are taken on trust; of MIG entries CUDA uses one.
int visible_gpu_count(const std::string& dev = "/dev");

}  // namespace ladder
