// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <functional>

namespace ladder {

// What happens to a bucket of gradients on its way through the network:
//
//     bucket -> encode -> summed over all ranks -> decode -> averaged gradients
//
// The sum is carried out by the process group, while backward goes on. A hook can shrink
// what is sent, change its precision, add noise, count bytes.
//
// Python's counterpart: DistributedDataParallel.register_comm_hook, whose hook starts the
// all-reduce itself and returns a future; here that part is fixed.
struct CommHook {
  // bucket: this rank's gradients, 1-D, not yet divided. Returns what is to be summed, of one
  // size and dtype on all ranks; may change the bucket in place.
  std::function<torch::Tensor(const torch::Tensor& bucket, int world_size)> encode;

  // sum: the result of encode, summed over the ranks. Returns the average, 1-D, as many elements
  // as the bucket; it is converted to the bucket's dtype. Runs on a thread of the process group.
  std::function<torch::Tensor(const torch::Tensor& sum)> decode;
};

// What happens without a hook: the gradients ÷ world size are summed.
CommHook allreduce_hook();

// Sends half as many bytes, rounded to float16 after the division, or to bfloat16: less
// precise, and in float16 values under 6e-8 become 0.
// Python: torch.distributed.algorithms.ddp_comm_hooks.default_hooks.
CommHook fp16_compress_hook();
CommHook bf16_compress_hook();

}  // namespace ladder
