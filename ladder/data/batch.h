// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace ladder {

// Some samples of a data set, as a network takes them.
//
// With several ranks it is this rank's part of a batch that all of them share. The part may be
// empty (N = 0): such a rank still takes the step, because the others wait for it.
struct Batch {
  torch::Tensor images;          // float32 [N, 1, 28, 28]
  torch::Tensor labels;          // int64 [N], each 0 to 9
  torch::Tensor positions;       // int64 [N], always on the CPU: place in the epoch's order that
                                 // the ranks share; repeated samples have places past its end
  std::int64_t epoch = 0;        // the epoch that the positions belong to; counts from 0
  std::int64_t global_size = 0;  // samples of this batch over all ranks; N on one rank
  std::int64_t world_size = 1;   // ranks that share the batch

  std::int64_t size() const { return labels.size(0); }

  // The batch with images and labels on `device`; itself if they are there already.
  // Does not wait for a copy from pinned memory to a GPU: later operations do.
  Batch to(const torch::Device& device) const {
    constexpr bool kNonBlocking = true;
    return {images.to(device, kNonBlocking),
            labels.to(device, kNonBlocking),
            positions,
            epoch,
            global_size,
            world_size};
  }
};

}  // namespace ladder
