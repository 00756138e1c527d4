// SPDX-License-Identifier: Apache-2.0
// By tensor operations. Kernels with the same bits: kernels/dropout_mask.cpp for the CPU,
// kernels/dropout_mask.cu for a GPU.
#include "ladder/nn/dropout_mask.h"

#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "ladder/core/device.h"
#include "ladder/core/philox.h"

namespace ladder {
namespace {

constexpr std::int64_t kWordMask = 0xFFFFFFFF;

// High and low word of multiplier * words; `words`: int64 with 32 significant bits.
std::pair<torch::Tensor, torch::Tensor> multiply_wide(std::uint32_t multiplier,
                                                      const torch::Tensor& words) {
  const auto product = words * static_cast<std::int64_t>(multiplier);  // wraps: same bits
  return {at::__rshift__(product, 32) & kWordMask, product & kWordMask};
}

using Words = std::array<torch::Tensor, 4>;

Words philox_by_tensors(Words word, std::uint64_t key) {
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const auto [high0, low0] = multiply_wide(kPhiloxMultiplier0, word[0]);
    const auto [high1, low1] = multiply_wide(kPhiloxMultiplier1, word[2]);
    word = {high1 ^ word[1] ^ static_cast<std::int64_t>(key0), low1,
            high0 ^ word[3] ^ static_cast<std::int64_t>(key1), low0};
    key0 += kPhiloxKeyStep0;
    key1 += kPhiloxKeyStep1;
  }
  return word;
}

}  // namespace

torch::Tensor empty_mask(const torch::Tensor& input) {
  return torch::empty(input.sizes(), input.options().dtype(torch::kFloat32),
                      input.suggest_memory_format());
}

std::uint32_t drop_threshold(const DropoutMaskOptions& options) {
  constexpr std::int64_t kLargest = 0xFFFFFFFF;
  return static_cast<std::uint32_t>(
      std::min<std::int64_t>(std::llround(options.p * 4294967296.0), kLargest));
}

float kept_scale(const DropoutMaskOptions& options) {
  return static_cast<float>(1.0 / (1.0 - options.p));
}

void check_positions(const torch::Tensor& input, const RandomKey& key) {
  TORCH_CHECK(
      input.dim() >= 1 && key.positions.dim() == 1 && key.positions.size(0) == input.size(0),
      "dropout: expected one position per sample, got ", key.positions.sizes(),
      " positions for an input of ", input.sizes(),
      "; hint: apply it where the first dimension is the sample: [samples, tokens, ...]");
  TORCH_CHECK(key.positions.is_cpu() || key.epoch == 0, "dropout: expected the epoch with the ",
              "positions, which are on a GPU, got epoch ", key.epoch,
              "; hint: RandomScope random({seed, batch.epoch, batch.positions})");
}

torch::Tensor counter_mask_by_tensors(const torch::Tensor& input, const RandomKey& key,
                                      const DropoutMaskOptions& options) {
  check_positions(input, key);
  const std::int64_t samples = input.size(0);
  const std::int64_t elements = samples == 0 ? 0 : input.numel() / samples;
  const auto long_on_device = torch::TensorOptions().dtype(torch::kInt64).device(input.device());
  const auto blocks = torch::arange((elements + 3) / 4, long_on_device).unsqueeze(0);
  const auto positions = send_to_device(key.positions, input.device()).unsqueeze(1);
  const auto zeros = torch::zeros({samples, (elements + 3) / 4}, long_on_device);
  const auto epochs = key.positions.is_cpu() ? zeros + (key.epoch & kWordMask)
                                             : zeros + (at::__rshift__(positions, 32) & kWordMask);
  const auto words = philox_by_tensors(
      {epochs, zeros + (positions & kWordMask), zeros + options.layer, zeros + blocks}, key.seed);
  const auto drawn = torch::cat({words[0], words[1], words[2], words[3]}, 1).narrow(1, 0, elements);
  const auto kept = drawn >= static_cast<std::int64_t>(drop_threshold(options));
  return empty_mask(input).copy_(
      (kept.to(torch::kFloat32) * kept_scale(options)).view(input.sizes()));
}

}  // namespace ladder
