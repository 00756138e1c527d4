// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/comm_hook.h"

#include <torch/types.h>

namespace ladder {
namespace {

CommHook compress_hook(torch::ScalarType dtype) {
  return {.encode = [dtype](const torch::Tensor& bucket,
                            int world_size) { return bucket.to(dtype).div_(world_size); },
          .decode = [](const torch::Tensor& sum) { return sum; }};
}

}  // namespace

CommHook allreduce_hook() {
  return {
      .encode = [](const torch::Tensor& bucket, int world_size) { return bucket.div(world_size); },
      .decode = [](const torch::Tensor& sum) { return sum; }};
}

CommHook fp16_compress_hook() { return compress_hook(torch::kFloat16); }
CommHook bf16_compress_hook() { return compress_hook(torch::kBFloat16); }

}  // namespace ladder
