// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/dropout_mask.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/core.h>
#include <torch/library.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ladder/core/log.h"
#include "ladder/core/philox.h"
#include "ladder/kernels/dropout_mask_cuda.h"

namespace ladder {
namespace {

void write_mask(const std::vector<std::uint32_t>& words, const SampleLayout& layout,
                std::uint32_t threshold, float kept, float* mask) {
  const auto value = [&](std::int64_t i) {
    return words[static_cast<std::size_t>(i)] < threshold ? 0.0F : kept;
  };
  if (layout.channels == 1) {
    for (std::int64_t i = 0; i < layout.pixels; ++i) mask[i] = value(i);
    return;
  }
  for (std::int64_t pixel = 0; pixel < layout.pixels; ++pixel) {
    for (std::int64_t channel = 0; channel < layout.channels; ++channel) {
      *mask++ = value(channel * layout.pixels + pixel);
    }
  }
}

torch::Tensor counter_mask_cpu(const torch::Tensor& input, const RandomKey& key,
                               const DropoutMaskOptions& options) {
  auto mask = empty_mask(input);
  const SampleLayout layout = sample_layout(mask);
  const std::int64_t elements = layout.elements();
  const auto positions = key.positions.contiguous();
  const auto* position = positions.const_data_ptr<std::int64_t>();
  auto* data = mask.mutable_data_ptr<float>();
  at::parallel_for(0, input.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(elements));
    for (std::int64_t i = begin; i < end; ++i) {
      draw_words(key, position[i], options, words);
      write_mask(words, layout, drop_threshold(options), kept_scale(options), data + i * elements);
    }
  });
  return mask;
}

// ladder::counter_mask: one operator of the dispatcher, so that a device can have a kernel of its
// own. The positions are numbers, so that the kernel decides whether they are copied.
using Operator = torch::Tensor(const torch::Tensor& input, at::IntArrayRef positions,
                               std::int64_t seed, std::int64_t epoch, std::int64_t layer, double p);

template <torch::Tensor (*kKernel)(const torch::Tensor&, const RandomKey&,
                                   const DropoutMaskOptions&)>
torch::Tensor run(const torch::Tensor& input, at::IntArrayRef positions, std::int64_t seed,
                  std::int64_t epoch, std::int64_t layer, double p) {
  const auto tensor = torch::from_blob(const_cast<std::int64_t*>(positions.data()),
                                       std::ssize(positions), torch::kInt64);
  return kKernel(input, {static_cast<std::uint64_t>(seed), epoch, tensor},
                 {.p = p, .layer = layer});
}

TORCH_LIBRARY_FRAGMENT(ladder, library) {
  library.def(
      "counter_mask(Tensor input, int[] positions, int seed, int epoch, int layer, float p) -> "
      "Tensor");
  library.impl("counter_mask", c10::DispatchKey::CPU, TORCH_FN(run<counter_mask_cpu>));
#ifdef LADDER_CUDA
  library.impl("counter_mask", c10::DispatchKey::CUDA, TORCH_FN(run<counter_mask_cuda>));
#endif
}

torch::Tensor fused_counter_mask(const torch::Tensor& input, const RandomKey& key,
                                 const DropoutMaskOptions& options) {
  static const auto kernel =
      c10::Dispatcher::singleton().findSchemaOrThrow("ladder::counter_mask", "").typed<Operator>();
  const auto positions = key.positions.contiguous();
  const at::IntArrayRef numbers(positions.const_data_ptr<std::int64_t>(),
                                static_cast<std::size_t>(positions.numel()));
  return kernel.call(input, numbers, static_cast<std::int64_t>(key.seed), key.epoch, options.layer,
                     options.p);
}

// Whether the kernel of this GPU gives the bits of tensor operations. Compares them once per GPU:
// positions in a row, as they usually are, are computed there, and others are read.
bool can_fuse(const torch::Tensor& input, const RandomKey& key, const DropoutMaskOptions& options) {
  constexpr std::int64_t kMaxElements = std::numeric_limits<std::int32_t>::max();
  if (!input.is_cuda() || input.numel() / input.size(0) > kMaxElements) return false;
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, bool> fusable;
  const std::lock_guard lock(mutex);
  const auto known = fusable.find(input.get_device());
  if (known != fusable.end()) return known->second;
  if (!key.positions.is_cpu()) return false;  // the comparison reads them on the host
  const auto entry = fusable.emplace(input.get_device(), false).first;
  std::string reason = "its bits differ from those of tensor operations";
  try {
    const RandomKey backwards{key.seed, key.epoch, key.positions.flip(0)};
    const auto is_same = [&](const RandomKey& drawn) {
      return torch::equal(fused_counter_mask(input, drawn, options),
                          counter_mask_by_tensors(input, drawn, options));
    };
    entry->second = is_same(key) && is_same(backwards);
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  }
  if (!entry->second) {
    Log().warn(
        fmt::format("dropout on {} uses tensor operations, which are slower, and not the "
                    "kernel for masks: {}",
                    input.device().str(), reason));
  }
  return entry->second;
}

}  // namespace

SampleLayout sample_layout(const torch::Tensor& mask) {
  const std::int64_t elements = mask.size(0) == 0 ? 0 : mask.numel() / mask.size(0);
  if (mask.is_contiguous()) return {1, elements};
  return {mask.size(1), elements / mask.size(1)};
}

void draw_words(const RandomKey& key, std::int64_t position, const DropoutMaskOptions& options,
                std::span<std::uint32_t> words) {
  philox_fill({key.seed, static_cast<std::uint32_t>(key.epoch),
               static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(options.layer)},
              words);
}

torch::Tensor counter_mask(const torch::Tensor& input, const RandomKey& key,
                           const DropoutMaskOptions& options) {
  check_positions(input, key);
  if (input.is_cpu()) return counter_mask_cpu(input, key, options);
  if (input.numel() == 0) return empty_mask(input);
  const bool fuses = can_fuse(input, key, options);
  if (fuses && key.positions.is_cpu()) return fused_counter_mask(input, key, options);
#ifdef LADDER_CUDA
  if (fuses) return counter_mask_cuda(input, key, options);
#endif
  return counter_mask_by_tensors(input, key, options);
}

}  // namespace ladder
