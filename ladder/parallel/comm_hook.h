// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <functional>

namespace ladder {

// Replaces the averaging of a bucket of gradients:
//
//     bucket -> encode -> all-reduce (sum) -> decode -> averaged gradients
//
// The process group sums while backward continues. A hook can compress the bucket, change its
// precision, add noise or count bytes.
//
// Python's counterpart: DistributedDataParallel.register_comm_hook, whose hook starts the
// all-reduce itself and returns a future.
struct CommHook {
  // bucket: this rank's gradients, 1-D, not yet divided. Returns the tensor to sum, of one size and
  // dtype on all ranks; may change the bucket in place.
  std::function<torch::Tensor(const torch::Tensor& bucket, int world_size)> encode;

  // sum: the results of encode, summed over the ranks. Returns the average, 1-D, as many elements
  // as the bucket; it is converted to the bucket's dtype. Runs on a thread of the process group.
  std::function<torch::Tensor(const torch::Tensor& sum)> decode;
};

// Sums gradients ÷ world size. This is the average without a hook too, but there c10d::Reducer
// divides by itself.
inline CommHook allreduce_hook() {
  return {
      .encode = [](const torch::Tensor& bucket, int world_size) { return bucket.div(world_size); },
      .decode = [](const torch::Tensor& sum) { return sum; }};
}

// Sends half as many bytes, rounded to float16 or bfloat16 before the division. Less precise; in
// float16, values below 6e-8 become 0. Python: torch.distributed.algorithms.ddp_comm_hooks.
inline CommHook compress_hook(torch::ScalarType dtype) {
  return {.encode = [dtype](const torch::Tensor& bucket,
                            int world_size) { return bucket.to(dtype).div_(world_size); },
          .decode = [](const torch::Tensor& sum) { return sum; }};
}
inline CommHook fp16_compress_hook() { return compress_hook(torch::kFloat16); }
inline CommHook bf16_compress_hook() { return compress_hook(torch::kBFloat16); }

}  // namespace ladder
