// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/dropout_flatten.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ladder/core/simd.h"
#include "ladder/kernels/vectors.h"
#include "ladder/nn/create_graph.h"
#include "ladder/nn/ops.h"

namespace ladder {
namespace {

using kernels::as_float;
using kernels::Bfloat16Bits;
using kernels::rounded;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool can_transpose(const torch::Tensor& images) {
  const auto type = images.scalar_type();
  return images.is_cpu() && (type == torch::kFloat || type == torch::kBFloat16) &&
         images.dim() == 4 && images.is_contiguous(torch::MemoryFormat::ChannelsLast);
}

// Calls body(index in NCHW, index in channels_last) for the elements of a sample, in tiles of
// pixels that stay in the cache while all channels are read.
template <typename Body>
[[gnu::always_inline]] inline void transpose_sample(std::int64_t channels, std::int64_t pixels,
                                                    const Body& body) {
  constexpr std::int64_t kTile = 16;
  for (std::int64_t first = 0; first < pixels; first += kTile) {
    const std::int64_t end = std::min(first + kTile, pixels);
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      for (std::int64_t pixel = first; pixel < end; ++pixel) {
        body(channel * pixels + pixel, pixel * channels + channel);
      }
    }
  }
}

enum class Direction { kFlatten, kBack };

// From `images` to `flat` or back, times `scale` where `keep` is 1, else times 0.
template <typename T>
void transpose_samples_of(Direction direction, const torch::Tensor& images,
                          const torch::Tensor& flat, const torch::Tensor& keep, double scale) {
  const float factor = as_float(rounded<T>(static_cast<float>(scale)));
  const std::int64_t channels = images.size(1);
  const std::int64_t pixels = images.size(2) * images.size(3);
  at::parallel_for(0, images.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t offset = begin * channels * pixels; offset < end * channels * pixels;
         offset += channels * pixels) {
      auto* image = static_cast<T*>(images.data_ptr()) + offset;
      auto* row = static_cast<T*>(flat.data_ptr()) + offset;
      const auto* kept = keep.const_data_ptr<std::uint8_t>() + offset;
      if (direction == Direction::kFlatten) {
        transpose_sample(channels, pixels, [=](std::int64_t i, std::int64_t j) {
          row[i] = rounded<T>(as_float(image[j]) * (kept[i] * factor));
        });
      } else {
        transpose_sample(channels, pixels, [=](std::int64_t i, std::int64_t j) {
          image[j] = rounded<T>(as_float(row[i]) * (kept[i] * factor));
        });
      }
    }
  });
}

void transpose_samples(Direction direction, const torch::Tensor& images, const torch::Tensor& flat,
                       const torch::Tensor& keep, double scale) {
  if (images.scalar_type() == torch::kBFloat16) {
    transpose_samples_of<Bfloat16Bits>(direction, images, flat, keep, scale);
  } else {
    transpose_samples_of<float>(direction, images, flat, keep, scale);
  }
}

LADDER_SIMD_V3
void compare(const std::vector<std::uint32_t>& words, std::uint32_t threshold, std::uint8_t* kept) {
  const std::size_t count = words.size();
  const std::uint32_t* word = words.data();
  LADDER_IVDEP
  for (std::size_t i = 0; i < count; ++i) kept[i] = word[i] < threshold ? 0 : 1;
}

// uint8 [N, elements]: 1 = kept.
torch::Tensor draw_keep(const torch::Tensor& images, const RandomKey& key,
                        const DropoutMaskOptions& options) {
  const std::int64_t elements = images.size(1) * images.size(2) * images.size(3);
  auto keep = torch::empty({images.size(0), elements}, torch::kUInt8);
  const auto positions = key.positions.contiguous();
  const std::uint32_t threshold = drop_threshold(options);
  at::parallel_for(0, images.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(elements));
    for (std::int64_t i = begin; i < end; ++i) {
      draw_words(key, positions.const_data_ptr<std::int64_t>()[i], options, words);
      compare(words, threshold, keep.mutable_data_ptr<std::uint8_t>() + i * elements);
    }
  });
  return keep;
}

class DropoutFlatten : public torch::autograd::Function<DropoutFlatten> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& images,
                               const RandomKey& key, const DropoutMaskOptions& options) {
    const auto keep = draw_keep(images, key, options);
    const double scale = kept_scale(options);
    auto flat = torch::empty(keep.sizes(), images.scalar_type());
    transpose_samples(Direction::kFlatten, images, flat, keep, scale);
    context->save_for_backward({keep});
    context->saved_data["scale"] = scale;
    context->saved_data["sizes"] = images.sizes().vec();
    return flat;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_create_graph("dropout_flatten");
    const auto flat = gradients[0].contiguous();
    const auto images =
        torch::empty(context->saved_data["sizes"].toIntVector(),
                     flat.options().memory_format(torch::MemoryFormat::ChannelsLast));
    transpose_samples(Direction::kBack, images, flat, context->get_saved_variables()[0],
                      context->saved_data["scale"].toDouble());
    return {images, {}, {}};
  }
};

}  // namespace

torch::Tensor dropout_flatten(const torch::Tensor& images, const RandomKey& key,
                              const DropoutMaskOptions& options) {
  RECORD_FUNCTION("ladder::dropout_flatten", {});
  check_positions(images, key);
  if (can_transpose(images)) return DropoutFlatten::apply(images, key, options);
  return plain::dropout_flatten(images, key, options);
}

}  // namespace ladder
