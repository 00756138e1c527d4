// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/conv_relu_max_pool.h"

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "ladder/kernels/relu_max_pool.h"
#include "ladder/kernels/sparse_convolution.h"
#include "ladder/kernels/sum_over_images.h"
#include "ladder/kernels/vectors.h"
#include "ladder/nn/create_graph.h"
#include "ladder/nn/ops.h"

namespace ladder {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using namespace kernels;

template <int kLanes, int kBlock>
[[gnu::always_inline]] inline void do_image_of(const ConvolutionBackward& args) {
  find_live_channels(args);
  if (args.input_gradient != nullptr) write_input_gradient<kLanes, kBlock>(args);
  add_weight_gradient<kLanes, kBlock>(args);
  add_bias_gradient(args);
}

std::int64_t block_of_channels(std::int64_t channels) { return channels % 32 == 0 ? 32 : 16; }

template <int kLanes>
[[gnu::always_inline]] inline void do_image(const ConvolutionBackward& args) {
  const bool wide = block_of_channels(args.shape.in_channels) == 32;
  wide ? do_image_of<kLanes, 32>(args) : do_image_of<kLanes, 16>(args);
}

void image_plain(const ConvolutionBackward& args) { do_image<4>(args); }
LADDER_AVX2
void image_avx2(const ConvolutionBackward& args) { do_image<8>(args); }
LADDER_AVX512
void image_avx512(const ConvolutionBackward& args) { do_image<16>(args); }

// [A, C, H, W] in channels_last as floats [C / block, A, H, W, block]: a view of floats with one
// block.
torch::Tensor in_blocks(const torch::Tensor& images) {
  const std::int64_t block = block_of_channels(images.size(1));
  return images.to(torch::kFloat)
      .permute({0, 2, 3, 1})
      .unflatten(3, {images.size(1) / block, block})
      .permute({3, 0, 1, 2, 4})
      .contiguous();
}

constexpr std::int64_t kMaxPixels = 1 << 24;  // of an image: places in it are 32 bits

class ConvReluMaxPool : public torch::autograd::Function<ConvReluMaxPool> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& input,
                               const torch::Tensor& weight, const torch::Tensor& bias) {
    const auto factors =
        weight.to(input.scalar_type()).contiguous(torch::MemoryFormat::ChannelsLast);
    // NNPACK, which LibTorch uses without oneDNN, returns another layout.
    const auto sums = torch::conv2d(input, factors).contiguous(torch::MemoryFormat::ChannelsLast);
    const auto [output, choices] = relu_max_pool2d_with_choices(sums, bias.contiguous());
    context->save_for_backward({input, factors, choices});
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_create_graph("conv_relu_max_pool2d");
    const auto saved = context->get_saved_variables();
    const auto& input = saved[0];
    const auto factors = in_blocks(saved[1]);
    const auto& choices = saved[2];
    const auto gradient = gradients[0].contiguous(torch::MemoryFormat::ChannelsLast);
    const ConvolutionShape shape = {input.size(2), input.size(3), input.size(1), saved[1].size(0)};
    const auto of_input = context->needs_input_grad(0) ? torch::empty_like(input) : torch::Tensor();
    const auto pass = for_this_cpu(image_plain, image_avx2, image_avx512);
    const auto add = [&](std::int64_t begin, std::int64_t end, float* sums) {
      const torch::NoGradGuard no_grad;
      std::vector<WindowMask> masks(static_cast<std::size_t>(shape.masks()));
      for (std::int64_t i = begin; i < end; ++i) {
        // Views of floats; copies of bfloat16s, which are widened once for all their uses.
        const auto g = gradient.narrow(0, i, 1).to(torch::kFloat);
        const auto x = in_blocks(input.narrow(0, i, 1));
        const auto out = of_input.defined() ? of_input.narrow(0, i, 1) : of_input;
        const bool copies = out.defined() && out.scalar_type() != torch::kFloat;
        const auto dx = copies ? torch::empty_like(out, torch::kFloat) : out;
        pass({.shape = shape,
              .gradient = g.const_data_ptr<float>(),
              .choice = choices.const_data_ptr<std::uint8_t>() + i * shape.pooled_size(),
              .input = x.const_data_ptr<float>(),
              .weight = factors.const_data_ptr<float>(),
              .masks = masks.data(),
              .input_gradient = dx.defined() ? dx.data_ptr<float>() : nullptr,
              .weight_gradient = sums,
              .bias_gradient = sums + shape.weight_size()});
        if (copies) out.copy_(dx);
      }
    };
    const auto sums = sum_over_images(input.size(0), shape.weight_size() + shape.out_channels, add);
    const auto of_weight = sums.slice(0, 0, shape.weight_size())
                               .view({shape.out_channels, 3, 3, shape.in_channels})
                               .permute({0, 3, 1, 2});
    return {of_input, of_weight, sums.slice(0, shape.weight_size())};
  }
};

bool can_skip_zeros(const torch::Tensor& input, const torch::Tensor& weight) {
  const auto type = input.scalar_type();
  return input.is_cpu() && (type == torch::kFloat || type == torch::kBFloat16) &&
         input.dim() == 4 && input.is_contiguous(torch::MemoryFormat::ChannelsLast) &&
         input.size(1) % 16 == 0 && input.size(2) % 2 == 0 && input.size(3) % 2 == 0 &&
         input.size(2) > 2 && input.size(3) > 2 && weight.scalar_type() == torch::kFloat &&
         weight.sizes() == c10::IntArrayRef({weight.size(0), input.size(1), 3, 3}) &&
         weight.size(0) % 16 == 0 && weight.size(0) > 0 && weight.size(0) <= kMaxChannels &&
         input.size(2) * input.size(3) < kMaxPixels;
}

}  // namespace

torch::Tensor conv2d_relu_max_pool2d(const torch::Tensor& input, const torch::Tensor& weight,
                                     const torch::Tensor& bias) {
  RECORD_FUNCTION("ladder::conv2d_relu_max_pool2d", {});
  const auto images = at::autocast::is_autocast_enabled(at::kCPU) && input.is_cpu()
                          ? input.to(at::autocast::get_autocast_dtype(at::kCPU))
                          : input;
  if (can_skip_zeros(images, weight)) {
    return ConvReluMaxPool::apply(images, weight, bias.to(torch::kFloat));
  }
  return plain::conv2d_relu_max_pool2d(images, weight, bias);
}

}  // namespace ladder
