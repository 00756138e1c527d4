// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <array>
#include <string>

#include "ladder/kernels/counter_mask_arguments.h"
#include "ladder/kernels/dropout_mask.h"

namespace ladder {

// Equals: counter_mask_by_tensors(input, key, options), bit for bit, on a GPU.
//
// One kernel instead of about 125 tensor operations, each of which would launch one. Its text is
// dropout_mask.cu. NVRTC, a part of the CUDA wheel, compiles it when a process draws its first mask
// on a kind of GPU: about 0.1 s. So the build needs no nvcc.
//
// For counter_mask, which calls it by way of the dispatcher, as ladder::counter_mask. Only in a
// build against a LibTorch with CUDA (LADDER_CUDA).
//
// `input` has elements, less than 2^31 per sample. Runs on the current stream, without waiting, and
// copies nothing to the GPU if positions are equally far apart, as those of a batch mostly are.
// Throws c10::Error if NVRTC or the driver refuses the kernel.
torch::Tensor counter_mask_cuda(const torch::Tensor& input, const RandomKey& key,
                                const DropoutMaskOptions& options);

// Machine code of the kernel for an architecture such as "sm_90": a cubin. Needs no GPU. Throws
// c10::Error without NVRTC, or with the compiler's log.
std::string compile_counter_mask(const std::string& architecture);

// What the kernel takes, for a mask that empty_mask made. `positions` points to those of the key,
// unless they are equally far apart.
CounterMaskArguments counter_mask_arguments(const torch::Tensor& mask, const RandomKey& key,
                                            const DropoutMaskOptions& options);

// Blocks of kCounterMaskThreads threads, in x and y.
std::array<unsigned, 2> counter_mask_blocks(const CounterMaskArguments& arguments);

}  // namespace ladder
