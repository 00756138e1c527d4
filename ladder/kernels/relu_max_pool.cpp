// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/relu_max_pool.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ladder/core/simd.h"
#include "ladder/kernels/pool_windows.h"
#include "ladder/nn/create_graph.h"
#include "ladder/nn/ops.h"

namespace ladder {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using namespace kernels;

template <typename T>
[[gnu::always_inline]] inline void pool_block(Row row, std::int64_t windows, const float* bias,
                                              const T* above, T* out, ArgmaxBlock& argmax) {
  const std::int64_t channels = row.channels;
  const T* below = above + row.pixels();
  std::int32_t* index_of = argmax.data();
  for (std::int64_t i = 0; i < windows; ++i) {
    LADDER_IVDEP
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto found =
          relu_max(as_float(above[c]) + bias[c], as_float(above[channels + c]) + bias[c],
                   as_float(below[c]) + bias[c], as_float(below[channels + c]) + bias[c]);
      out[c] = rounded<T>(found.value);
      index_of[c] = found.index;
    }
    above += 2 * channels;
    below += 2 * channels;
    out += channels;
    index_of += channels;
  }
}

// Each pixel gets its window's gradient or zero.
template <typename T>
[[gnu::always_inline]] inline void spread_block(Row row, std::int64_t windows, const T* gradient,
                                                const ArgmaxBlock& argmax, T* above) {
  const std::int64_t channels = row.channels;
  T* below = above + row.pixels();
  const std::int32_t* index_of = argmax.data();
  for (std::int64_t i = 0; i < windows; ++i) {
    LADDER_IVDEP
    for (std::int64_t c = 0; c < channels; ++c) {
      const float value = as_float(gradient[c]);
      const std::int32_t index = index_of[c];
      above[c] = rounded<T>(number_if(index == 0, value));
      above[channels + c] = rounded<T>(number_if(index == 1, value));
      below[c] = rounded<T>(number_if(index == 2, value));
      below[channels + c] = rounded<T>(number_if(index == 3, value));
    }
    above += 2 * channels;
    below += 2 * channels;
    gradient += channels;
    index_of += channels;
  }
}

enum class Pass { kPool, kSpread };

template <typename T>
[[gnu::always_inline]] inline void do_blocks(Pass pass, Row row, const float* bias, T* pixels,
                                             T* pooled, std::uint8_t* choice) {
  ArgmaxBlock argmax;
  const std::int64_t block = block_of(row.channels);
  for (std::int64_t first = 0; first < row.windows; first += block) {
    const std::int64_t windows = std::min(block, row.windows - first);
    const std::int64_t begin = first * row.channels;
    const std::int64_t count = windows * row.channels;
    if (pass == Pass::kPool) {
      pool_block(row, windows, bias, pixels + 2 * begin, pooled + begin, argmax);
      narrow(argmax, count, choice + begin);
    } else {
      widen(choice + begin, count, argmax);
      spread_block(row, windows, pooled + begin, argmax, pixels + 2 * begin);
    }
  }
}

LADDER_SIMD_V3
void do_row(Pass pass, bool bfloat16, Row row, const float* bias, void* pixels, void* pooled,
            std::uint8_t* choice) {
  if (bfloat16) {
    do_blocks(pass, row, bias, static_cast<Bfloat16Bits*>(pixels),
              static_cast<Bfloat16Bits*>(pooled), choice);
  } else {
    do_blocks(pass, row, bias, static_cast<float*>(pixels), static_cast<float*>(pooled), choice);
  }
}

void do_rows(Pass pass, const float* bias, const torch::Tensor& pixels, const torch::Tensor& pooled,
             const torch::Tensor& choices) {
  const Row row = row_of(pooled);
  const bool bfloat16 = pooled.scalar_type() == torch::kBFloat16;
  const auto size = static_cast<std::int64_t>(pooled.element_size());
  auto* pixel = static_cast<std::byte*>(pixels.data_ptr());
  auto* window = static_cast<std::byte*>(pooled.data_ptr());
  auto* choice = choices.data_ptr<std::uint8_t>();
  at::parallel_for(0, rows_of(pooled), 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      do_row(pass, bfloat16, row, bias, pixel + 2 * i * row.pixels() * size,
             window + i * row.pooled() * size, choice + i * row.pooled());
    }
  });
}

class ReluMaxPool : public torch::autograd::Function<ReluMaxPool> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& input,
                               const torch::Tensor& bias) {
    const auto [output, choices] = relu_max_pool2d_with_choices(input, bias);
    context->save_for_backward({choices});
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_create_graph("relu_max_pool2d");
    const auto gradient = gradients[0].contiguous(torch::MemoryFormat::ChannelsLast);
    auto result = empty_pixels(gradient);
    do_rows(Pass::kSpread, nullptr, result, gradient, context->get_saved_variables()[0]);
    if (!context->needs_input_grad(1)) return {result, {}};
    return {result, result.sum({0, 2, 3}, /*keepdim=*/false, torch::kFloat)};
  }
};

}  // namespace

PooledWithChoices relu_max_pool2d_with_choices(const torch::Tensor& input,
                                               const torch::Tensor& bias) {
  TORCH_CHECK(bias.dim() == 1 && bias.size(0) == input.size(1),
              "relu_max_pool2d: expected a bias of [", input.size(1), "], got ", bias.sizes());
  const auto output = empty_pooled(input);
  const auto choices = torch::empty_like(output, torch::kUInt8);
  const auto* numbers = bias.const_data_ptr<float>();
  std::vector<float> shift(numbers, numbers + bias.numel());
  if (input.scalar_type() == torch::kBFloat16) {
    std::transform(shift.begin(), shift.end(), shift.begin(), coefficient);
  }
  do_rows(Pass::kPool, shift.data(), input, output, choices);
  return {output, choices};
}

torch::Tensor relu_max_pool2d(const torch::Tensor& input, const torch::Tensor& bias) {
  RECORD_FUNCTION("ladder::relu_max_pool2d", {});
  TORCH_CHECK(bias.dim() == 1 && bias.size(0) == input.size(1),
              "relu_max_pool2d: expected a bias of [", input.size(1), "], got ", bias.sizes());
  if (can_cut(input)) return ReluMaxPool::apply(input, bias.to(torch::kFloat).contiguous());
  return plain::relu_max_pool2d(input, bias);
}

}  // namespace ladder
