// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/sample_noise.h"

#include <c10/util/accumulate.h>
#include <torch/utils.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/philox.h"
#include "ladder/nn/random_scope.h"

namespace ladder {
namespace {

// Keeps the streams apart from those of dropout layers and of RandomShift.
constexpr std::uint32_t kNoiseStream = 0xB0000000;
constexpr double kWordStep = 0x1p-32;

}  // namespace

torch::Tensor sample_noise(torch::IntArrayRef shape, std::uint32_t stream) {
  const auto& key = RandomScope::current();
  if (!key.positions.is_cpu()) {
    throw UsageError::conflict("sample_noise", "a captured step repeats the numbers of its capture",
                               "draw the noise before graph.run, as an input of the batch");
  }
  const auto positions = key.positions.contiguous();
  std::vector<std::int64_t> sizes = {positions.size(0)};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  auto noise = torch::empty(sizes, torch::kFloat32);
  const auto count = c10::multiply_integers(shape);
  std::vector<std::uint32_t> words(static_cast<std::size_t>(count + count % 2));
  auto* next = noise.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < positions.size(0); ++i) {
    const auto position = positions.const_data_ptr<std::int64_t>()[i];
    philox_fill({key.seed, static_cast<std::uint32_t>(key.epoch),
                 static_cast<std::uint32_t>(position), kNoiseStream + stream},
                words);
    for (std::size_t j = 0; j < words.size(); j += 2) {
      const double radius = std::sqrt(-2.0 * std::log((words[j] + 1.0) * kWordStep));
      const double angle = 2.0 * std::numbers::pi * words[j + 1] * kWordStep;
      *next++ = static_cast<float>(radius * std::cos(angle));
      if (static_cast<std::int64_t>(j) + 1 < count) {
        *next++ = static_cast<float>(radius * std::sin(angle));
      }
    }
  }
  return noise;
}

}  // namespace ladder
