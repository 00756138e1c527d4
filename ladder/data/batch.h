// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <cstdint>

#include "ladder/core/one_thread.h"
#include "ladder/data/inputs.h"

namespace ladder {

// The number of samples over which the loss of a batch is a mean: those of all ranks together.
struct NumItems {
  std::int64_t global = 0;       // samples over all ranks
  std::int64_t processes = 1;    // ranks whose gradients are averaged
  std::int64_t micro_batch = 0;  // > 0: gradients are added one micro-batch at a time

  // The loss to differentiate, from the sum over this rank's samples: sum × ranks ÷ global. On one
  // rank that is the mean, to the last bit. On several, gradients averaged over the ranks equal the
  // gradient of the mean over all samples, whatever the size of each rank's part.
  torch::Tensor mean(const torch::Tensor& sum) const {
    const auto scaled = processes == 1 ? sum : sum * static_cast<double>(processes);
    return scaled / static_cast<double>(global);
  }

  // The same from a function loss_sum(output, targets). In micro-batches it is called for each, and
  // the result is float64, a sum of multiples of 2^-32: doubles add such numbers without rounding,
  // so the sum over the ranks is the same bits for any number of them, and of threads.
  template <typename LossSum>
  torch::Tensor mean(const LossSum& loss_sum, const torch::Tensor& output,
                     const torch::Tensor& targets) const {
    if (micro_batch == 0) return mean(loss_sum(output, targets));
    const OneThread one_thread;  // else the sum over a large output depends on their number
    torch::Tensor total;
    for (std::int64_t begin = 0; begin == 0 || begin < output.size(0); begin += micro_batch) {
      const auto size = std::min(micro_batch, output.size(0) - begin);
      const auto part =
          rounded(mean(loss_sum(output.narrow(0, begin, size), targets.narrow(0, begin, size))
                           .to(torch::kDouble)));
      total = total.defined() ? total + part : part;
    }
    return total;
  }

 private:
  // To a multiple of 2^-32, with the gradient of `number`.
  static torch::Tensor rounded(const torch::Tensor& number) {
    constexpr double kSteps = 0x1p32;
    const auto value = number.detach();
    return number + ((value * kSteps).round() / kSteps - value);
  }
};

// Some samples of a data set: with several ranks, this rank's part of a batch that all ranks share.
// The part may be empty (N = 0); the rank still takes the step, because the others wait for it.
//
// A Dataset fills inputs and targets; the DataLoader fills the rest.
struct Batch {
  Inputs inputs;                 // N rows each
  torch::Tensor targets;         // N rows; undefined in a data set without targets
  torch::Tensor positions;       // int64 [N]: in the order of all ranks, repeated samples past its
                                 // end; on the CPU, in a captured step on the GPU, + 2^32 * epoch
  torch::Tensor indices;         // int64 [N] on the CPU: the samples of the data set
  std::int64_t epoch = 0;        // the epoch that the positions belong to; counts from 0
  std::int64_t global_size = 0;  // samples of this batch over all ranks; N on one rank
  std::int64_t world_size = 1;   // ranks that share the batch
  std::int64_t micro_batch = 0;  // samples of which ranks get whole multiples; 0 = any number

  std::int64_t size() const { return targets.defined() ? targets.size(0) : inputs.rows(); }
  NumItems num_items() const {
    return {global_size, micro_batch > 0 ? 1 : world_size, micro_batch};
  }

  // The batch with inputs and targets on `device`; does not copy what is there already, and does
  // not wait for a copy from pinned memory to a GPU.
  Batch to(const torch::Device& device) const {
    const auto moved = [&](const torch::Tensor& tensor) {
      return tensor.defined() ? tensor.to(device, /*non_blocking=*/true) : tensor;
    };
    Batch batch = *this;
    batch.inputs = inputs.map(moved);
    batch.targets = moved(targets);
    return batch;
  }
};

}  // namespace ladder
