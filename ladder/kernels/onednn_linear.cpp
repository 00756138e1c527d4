// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/onednn_linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <optional>
#include <string_view>

#include "ladder/nn/create_graph.h"

namespace ladder {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// oneDNN's a * b^T + c, if this LibTorch has it.
const std::optional<c10::OperatorHandle>& product() {
  static const auto found =
      c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  return found;
}

torch::Tensor times_transposed(const torch::Tensor& a, const torch::Tensor& b,
                               const std::optional<torch::Tensor>& c = std::nullopt) {
  using Scalars = c10::List<std::optional<at::Scalar>>;
  using Signature =
      torch::Tensor(const torch::Tensor&, const torch::Tensor&, const std::optional<torch::Tensor>&,
                    std::string_view, Scalars, std::optional<std::string_view>);
  return product()->typed<Signature>().call(a, b, c, "none", Scalars(), "");
}

// The arguments have the order of addmm: gradients become ready in that order, which determines the
// buckets of DistributedDataParallel.
class OnednnLinear : public torch::autograd::Function<OnednnLinear> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& bias,
                               const torch::Tensor& input, const torch::Tensor& weight,
                               const c10::intrusive_ptr<torch::CustomClassHolder>& products) {
    context->save_for_backward({input, weight});
    if (products && takes_products(weight) && input.is_contiguous()) {
      context->saved_data["products"] = c10::IValue::make_capsule(products);
    }
    return times_transposed(input, weight, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_create_graph("linear");
    const auto saved = context->get_saved_variables();
    const auto gradient = gradients[0].contiguous();
    variable_list found(4);
    if (context->needs_input_grad(0)) found[0] = gradient.sum(0);
    if (context->needs_input_grad(1)) found[1] = times_transposed(gradient, saved[1].t());
    if (!context->needs_input_grad(2)) return found;
    if (const auto products = context->saved_data.find("products");
        products != context->saved_data.end()) {
      static_cast<WeightProducts&>(*products->second.toCapsule())
          .kept.push_back({gradient, saved[0]});
    } else {
      found[2] = times_transposed(gradient.t().contiguous(), saved[0].t());
    }
    return found;
  }
};

bool can_take(const torch::Tensor& input, const torch::Tensor& weight) {
  return input.is_cpu() && input.scalar_type() == torch::kFloat &&
         weight.scalar_type() == torch::kFloat && input.dim() == 2 && input.numel() > 0 &&
         !at::autocast::is_autocast_enabled(at::kCPU) && product().has_value();
}

}  // namespace

torch::Tensor onednn_linear(const torch::Tensor& input, const torch::Tensor& weight,
                            const torch::Tensor& bias,
                            const c10::intrusive_ptr<torch::CustomClassHolder>& products) {
  if (!can_take(input, weight)) return torch::linear(input, weight, bias);
  RECORD_FUNCTION("ladder::onednn_linear", {});
  return OnednnLinear::apply(bias, input, weight, products);
}

}  // namespace ladder
