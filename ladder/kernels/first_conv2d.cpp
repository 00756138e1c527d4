// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/first_conv2d.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ladder/kernels/sum_over_images.h"
#include "ladder/kernels/vectors.h"
#include "ladder/nn/create_graph.h"

namespace ladder {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using namespace kernels;

// A pass over one row of output pixels. What a pass does not need is null.
struct FirstConvRow {
  std::int64_t width;     // of the output
  std::int64_t channels;  // of the output
  std::int64_t stride;    // floats from one row of the padded image to the next
  const float* image;     // the pixel above and left of the first output pixel's
  float* weights;         // [K * K + 1][C]: the weights, and the bias; backward: sums for both
  bool relu;
  bool bfloat16;         // of the next two
  void* output;          // [width][C]
  const void* gradient;  // of the output
};

template <int kSize, int kLanes, typename T>
[[gnu::always_inline]] inline void multiply_row(const FirstConvRow& args) {
  constexpr int kTaps = kSize * kSize;
  using V = Vector<kLanes>;
  for (std::int64_t c = 0; c < args.channels; c += kLanes) {
    Vectors<kLanes, kTaps> weight;
    V bias;
#pragma GCC unroll 25
    for (int tap = 0; tap < kTaps; ++tap) load(weight[tap], args.weights + tap * args.channels + c);
    load(bias, args.weights + kTaps * args.channels + c);
    T* output = static_cast<T*>(args.output) + c;
    const float* pixel = args.image;
    for (std::int64_t x = 0; x < args.width; ++x, ++pixel, output += args.channels) {
      V sum = bias;
#pragma GCC unroll 25
      for (int tap = 0; tap < kTaps; ++tap) {
        sum += weight[tap] * pixel[tap / kSize * args.stride + tap % kSize];
      }
      if (args.relu) sum = sum <= 0.0F ? V{} : sum;
      store(output, sum);
    }
  }
}

// weights += gradient * pixel, for kLanes channels from `c` and kSums taps from `first`.
template <int kSize, int kLanes, int kSums, typename T>
[[gnu::always_inline]] inline void add_taps(const FirstConvRow& args, std::int64_t c, int first) {
  constexpr int kTaps = kSize * kSize;
  using V = Vector<kLanes>;
  float* sums = args.weights + first * args.channels + c;
  float* bias_sum = args.weights + kTaps * args.channels + c;
  Vectors<kLanes, kSums> sum;
  V bias;
#pragma GCC unroll 25
  for (int i = 0; i < kSums; ++i) load(sum[i], sums + i * args.channels);
  load(bias, bias_sum);
  const T* output = static_cast<const T*>(args.output) + c;
  const T* gradient = static_cast<const T*>(args.gradient) + c;
  const float* pixel = args.image + first / kSize * args.stride;
  for (std::int64_t x = 0; x < args.width; ++x, ++pixel) {
    V g;
    load(g, gradient + x * args.channels);
    if (args.relu) {
      V y;
      load(y, output + x * args.channels);
      g = y <= 0.0F ? V{} : g;
    }
    bias += g;
#pragma GCC unroll 25
    for (int i = 0; i < kSums; ++i) {
      sum[i] += g * pixel[i / kSize * args.stride + i % kSize];
    }
  }
#pragma GCC unroll 25
  for (int i = 0; i < kSums; ++i) store(sums + i * args.channels, sum[i]);
  if (first == 0) store(bias_sum, bias);
}

template <int kSize, int kLanes, typename T>
[[gnu::always_inline]] inline void add_row(const FirstConvRow& args) {
  constexpr int kTaps = kSize * kSize;
  constexpr int kSums = kTaps < 16 || kLanes == 16 ? kTaps : kSize;  // that fit into the registers
  for (std::int64_t c = 0; c < args.channels; c += kLanes) {
    for (int first = 0; first < kTaps; first += kSums) {
      add_taps<kSize, kLanes, kSums, T>(args, c, first);
    }
  }
}

enum class FirstConvPass { kMultiply, kAdd };

template <int kSize, int kLanes, typename T>
[[gnu::always_inline]] inline void do_pass(FirstConvPass pass, const FirstConvRow& args) {
  pass == FirstConvPass::kMultiply ? multiply_row<kSize, kLanes, T>(args)
                                   : add_row<kSize, kLanes, T>(args);
}

template <int kLanes>
[[gnu::always_inline]] inline void do_first_conv_row(FirstConvPass pass, std::int64_t size,
                                                     const FirstConvRow& args) {
  if (size == 3 && args.bfloat16) return do_pass<3, kLanes, Bfloat16Bits>(pass, args);
  if (size == 3) return do_pass<3, kLanes, float>(pass, args);
  if (args.bfloat16) return do_pass<5, kLanes, Bfloat16Bits>(pass, args);
  do_pass<5, kLanes, float>(pass, args);
}

void first_conv_plain(FirstConvPass pass, std::int64_t size, const FirstConvRow& args) {
  do_first_conv_row<4>(pass, size, args);
}
LADDER_AVX2
void first_conv_avx2(FirstConvPass pass, std::int64_t size, const FirstConvRow& args) {
  do_first_conv_row<8>(pass, size, args);
}
LADDER_AVX512
void first_conv_avx512(FirstConvPass pass, std::int64_t size, const FirstConvRow& args) {
  do_first_conv_row<16>(pass, size, args);
}

// The images [begin, end). `images`: padded, float. `weights`: as in FirstConvRow.
void do_images(FirstConvPass pass, const torch::Tensor& images, std::int64_t size, float* weights,
               bool relu, const torch::Tensor& output, const torch::Tensor& gradient,
               std::int64_t begin, std::int64_t end) {
  const auto row = for_this_cpu(first_conv_plain, first_conv_avx2, first_conv_avx512);
  const auto& like = output.defined() ? output : gradient;
  const std::int64_t height = like.size(2);
  FirstConvRow args = {.width = like.size(3),
                       .channels = like.size(1),
                       .stride = images.size(3),
                       .weights = weights,
                       .relu = relu,
                       .bfloat16 = like.scalar_type() == torch::kBFloat16};
  const std::int64_t bytes = args.width * args.channels * like.element_size();
  for (std::int64_t y = begin * height; y < end * height; ++y) {
    const std::int64_t image_row = y / height * images.size(2) + y % height;
    args.image = images.const_data_ptr<float>() + image_row * args.stride;
    args.output =
        output.defined() ? static_cast<std::byte*>(output.data_ptr()) + y * bytes : nullptr;
    args.gradient =
        gradient.defined() ? static_cast<std::byte*>(gradient.data_ptr()) + y * bytes : nullptr;
    row(pass, size, args);
  }
}

// [K * K + 1][C]
torch::Tensor rows_of_weights(const torch::Tensor& weight, const torch::Tensor& bias) {
  return torch::cat({weight.reshape({weight.size(0), -1}).t(), bias.unsqueeze(0)}).contiguous();
}

class FirstConv2d : public torch::autograd::Function<FirstConv2d> {
 public:
  // `images`: padded.
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& images,
                               const torch::Tensor& weight, const torch::Tensor& bias, bool relu) {
    const auto type = images.scalar_type();
    const std::int64_t size = weight.size(2);
    const auto pixels = images.to(torch::kFloat).contiguous();
    // A convolution in bfloat16 rounds its weights, and so does this one.
    const auto weights = rows_of_weights(weight, bias).to(type).to(torch::kFloat);
    auto output = torch::empty(
        {images.size(0), weight.size(0), images.size(2) - size + 1, images.size(3) - size + 1},
        torch::dtype(type).memory_format(torch::MemoryFormat::ChannelsLast));
    at::parallel_for(0, images.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
      do_images(FirstConvPass::kMultiply, pixels, size, weights.data_ptr<float>(), relu, output, {},
                begin, end);
    });
    context->save_for_backward({pixels, weight, relu ? output : torch::Tensor()});
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_create_graph("first_conv2d");
    const auto saved = context->get_saved_variables();
    const auto& weight = saved[1];
    const auto& output = saved[2];
    const auto gradient = gradients[0].contiguous(torch::MemoryFormat::ChannelsLast);
    const std::int64_t taps = weight.size(2) * weight.size(3);
    const auto sums =
        sum_over_images(saved[0].size(0), (taps + 1) * weight.size(0),
                        [&](std::int64_t begin, std::int64_t end, float* group) {
                          do_images(FirstConvPass::kAdd, saved[0], weight.size(2), group,
                                    output.defined(), output, gradient, begin, end);
                        });
    const auto rows = sums.view({taps + 1, weight.size(0)});
    const auto of_weight =
        torch::empty_like(weight).copy_(rows.slice(0, 0, taps).t().reshape(weight.sizes()));
    return {{}, of_weight, rows[taps], {}};
  }
};

bool can_multiply(const torch::Tensor& input, const torch::Tensor& weight, std::int64_t padding) {
  const auto type = input.scalar_type();
  return input.is_cpu() && (type == torch::kFloat || type == torch::kBFloat16) &&
         input.dim() == 4 && input.size(1) == 1 && !input.requires_grad() && weight.dim() == 4 &&
         weight.scalar_type() == torch::kFloat && weight.size(0) % 16 == 0 && weight.size(1) == 1 &&
         weight.size(2) == weight.size(3) && (weight.size(2) == 3 || weight.size(2) == 5) &&
         weight.size(2) <= input.size(2) + 2 * padding &&
         weight.size(3) <= input.size(3) + 2 * padding;
}

}  // namespace

torch::Tensor first_conv2d(const torch::Tensor& input, const torch::Tensor& weight,
                           const torch::Tensor& bias, std::int64_t padding, Activation activation) {
  RECORD_FUNCTION("ladder::first_conv2d", {});
  const bool relu = activation == Activation::kRelu;
  const auto images = input.is_cpu() && at::autocast::is_autocast_enabled(at::kCPU)
                          ? input.to(at::autocast::get_autocast_dtype(at::kCPU))
                          : input;
  if (can_multiply(images, weight, padding)) {
    TORCH_CHECK(bias.dim() == 1 && bias.size(0) == weight.size(0),
                "first_conv2d: expected a bias of [", weight.size(0), "], got ", bias.sizes());
    const auto padded = padding == 0
                            ? images
                            : torch::constant_pad_nd(images, {padding, padding, padding, padding});
    return FirstConv2d::apply(padded, weight, bias, relu);
  }
  return plain::first_conv2d(images, weight, bias, padding, activation);
}

}  // namespace ladder
