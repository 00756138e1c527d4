// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <string>

#include "ladder/data/distributed_sampler.h"
#include "ladder/data/random_shift.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

constexpr std::int64_t kImages = 3'200;  // of each rank

// The number of k for which the k-th images of ranks 0 and 1 get the same shift.
std::int64_t equal_shifts(const torch::Tensor& shifts, const ProcessGroup& group) {
  const auto all = group.all_gather_into_tensor(shifts);
  return (all[0] == all[1]).all(1).sum().item<std::int64_t>();
}

torch::Tensor shifts_of(const RandomShift& shift, const std::vector<std::int64_t>& images) {
  auto shifts = torch::empty({static_cast<std::int64_t>(images.size()), 2}, torch::kInt64);
  for (std::size_t i = 0; i < images.size(); ++i) {
    const auto [down, right] = shift.offset(0, images[i]);
    shifts[static_cast<std::int64_t>(i)][0] = down;
    shifts[static_cast<std::int64_t>(i)][1] = right;
  }
  return shifts;
}

// Steps whose inputs are the samples' numbers and shifts.
template <typename ShiftsOf>
void record(const char* side, const std::vector<std::int64_t>& order, const ShiftsOf& shifts_of) {
  constexpr std::size_t kBatch = 64;
  constexpr std::size_t kSteps = 4;
  const torch::nn::Module no_model;
  Recorder recorder(side, no_model);
  for (std::size_t step = 0; recorder.records() && step < kSteps; ++step) {
    const auto* begin = order.data() + step * kBatch;
    const std::vector<std::int64_t> images(begin, begin + kBatch);
    const auto indices = torch::tensor(images);
    recorder.step({.inputs = torch::cat({indices.unsqueeze(1), shifts_of(images)}, 1),
                   .positions = indices,
                   .indices = indices},
                  torch::zeros({}), no_model);
  }
}

}  // namespace

void same_noise() {
  on_ranks(2, [](const ProcessGroup& group) {
    torch::manual_seed(42);  // on every rank
    const auto wrong = equal_shifts(torch::randint(-2, 3, {kImages, 2}, torch::kInt64), group);
    const RandomShift shift({.seed = 42});
    const DistributedSampler part(2 * kImages, {.world_size = 2, .rank = group.rank()});
    const auto right = equal_shifts(shifts_of(shift, part.order(0)), group);
    const auto of_one_image = equal_shifts(shifts_of(shift, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), group);
    require(wrong == kImages, "the ranks drew different numbers");
    require(right < kImages / 10, "the ranks drew the same numbers");
    require(of_one_image == 10, "the shift of an image depends on the rank");
    record("mistake", part.order(0), [](const auto& images) {
      return torch::randint(-2, 3, {static_cast<std::int64_t>(images.size()), 2}, torch::kInt64);
    });
    record("guard", part.order(0), [&](const auto& images) { return shifts_of(shift, images); });
    if (group.rank() != 0) return;
    mistake("equal shifts on both ranks", fmt::format("{} of {}", wrong, kImages));
    guard("equal shifts on both ranks", fmt::format("{} of {}", right, kImages));
    guard("equal shifts, same image", fmt::format("{} of 10", of_one_image));
  });
}

}  // namespace ladder::traps
