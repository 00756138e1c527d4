// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace ladder {

// How many samples the loss of a batch is a mean over: those of all ranks that share it.
struct NumItems {
  std::int64_t global = 0;     // samples over all ranks
  std::int64_t processes = 1;  // ranks that share them

  // The loss to differentiate, from the sum over this rank's samples: sum × ranks ÷ samples of all.
  // On one rank that is the mean, to the last bit. On several, averaging the gradients over the
  // ranks gives the gradient of the mean over all samples, whatever the sizes of the parts; a rank
  // without samples has the loss 0.
  torch::Tensor mean(const torch::Tensor& sum) const {
    const auto scaled = processes == 1 ? sum : sum * static_cast<double>(processes);
    return scaled / static_cast<double>(global);
  }
};

// Some samples of a data set, as a network takes them.
//
// With several ranks it is this rank's part of a batch that all of them share. The part may be
// empty (N = 0): such a rank still takes the step, because the others wait for it.
struct Batch {
  torch::Tensor images;          // float32 [N, 1, 28, 28]
  torch::Tensor labels;          // int64 [N], each 0 to 9
  torch::Tensor positions;       // int64 [N], always on the CPU: place in the epoch's order that
                                 // the ranks share; repeated samples have places past its end
  torch::Tensor indices;         // int64 [N], always on the CPU: which samples of the data set
  std::int64_t epoch = 0;        // the epoch that the positions belong to; counts from 0
  std::int64_t global_size = 0;  // samples of this batch over all ranks; N on one rank
  std::int64_t world_size = 1;   // ranks that share the batch

  std::int64_t size() const { return labels.size(0); }
  NumItems num_items() const { return {global_size, world_size}; }

  // The batch with images and labels on `device`; itself if they are there already.
  // Does not wait for a copy from pinned memory to a GPU: later operations do.
  Batch to(const torch::Device& device) const {
    constexpr bool kNonBlocking = true;
    return {images.to(device, kNonBlocking),
            labels.to(device, kNonBlocking),
            positions,
            indices,
            epoch,
            global_size,
            world_size};
  }
};

}  // namespace ladder
