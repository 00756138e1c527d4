// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>

namespace ladder::kernels {

// Runs `add(begin, end, sums)` over groups of consecutive images, on all threads, and returns the
// sums of all groups, float [size]. `add` adds the images [begin, end) to its `sums`, which begin
// at 0. The groups depend on `images` alone and are added in order: the same bits on any number of
// threads.
template <typename Add>
torch::Tensor sum_over_images(std::int64_t images, std::int64_t size, const Add& add) {
  constexpr std::int64_t kImages = 4;  // a group has `size` floats to clear and to add
  constexpr std::int64_t kMaxGroups = 16;
  const std::int64_t groups =
      std::clamp<std::int64_t>((images + kImages - 1) / kImages, 1, kMaxGroups);
  const auto sums = torch::zeros({groups, size}, torch::kFloat);
  at::parallel_for(0, groups, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t group = first; group < last; ++group) {
      add(group * images / groups, (group + 1) * images / groups,
          sums.data_ptr<float>() + group * size);
    }
  });
  return sums.sum(0);
}

}  // namespace ladder::kernels
