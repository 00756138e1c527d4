// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"

// The parts of SyncBatchNorm, which LibTorch has for a GPU alone.
namespace fake_cuda {
namespace {

using Pair = std::tuple<at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// The type of statistics: float64 for float64, else float32.
at::ScalarType statistics_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// The tensors of one call, checked as a GPU's kernel checks them.
class Call {
 public:
  Call(std::string name, const at::Tensor& input)
      : name_(std::move(name)), input_(input), x_(host_view(input).to(statistics_type(input))) {
    TORCH_CHECK(!is_captured(), "fake_cuda: ", name_, " in a graph");
    count_kernel(name_, input.device());
  }

  const at::Tensor& x() const { return x_; }
  at::Tensor statistics(const at::Tensor& t) const { return checked(t, statistics_type(input_)); }
  at::Tensor like_input(const at::Tensor& t) const { return checked(t, input_.scalar_type()); }
  at::Tensor counts(const at::Tensor& t) const { return checked(t, at::kInt); }
  at::Tensor weight(const at::Tensor& t) const {
    return checked(t,
                   t.scalar_type() == at::kFloat ? statistics_type(input_) : input_.scalar_type());
  }

  // [C] as [1, C, 1, 1].
  at::Tensor per_channel(const at::Tensor& t) const {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(x_.dim()), 1);
    shape[1] = -1;
    return t.view(shape);
  }
  at::Tensor sum(const at::Tensor& t) const { return t.sum(all_but_channels()); }
  std::vector<std::int64_t> all_but_channels() const {
    std::vector<std::int64_t> dims = {0};
    for (std::int64_t d = 2; d < x_.dim(); ++d) dims.push_back(d);
    return dims;
  }
  at::Tensor on_gpu(const at::Tensor& result) const {
    auto copy = empty_on(input_.device(), result.sizes(), result.strides(), result.scalar_type());
    host_view(copy).copy_(result);
    return copy;
  }

 private:
  at::Tensor checked(const at::Tensor& t, at::ScalarType expected) const {
    TORCH_CHECK(t.device() == input_.device(), "Expected tensor to have ", input_.device(),
                " Device, but got tensor with ", t.device(), " Device (", name_, ")");
    TORCH_CHECK(t.scalar_type() == expected, "expected scalar type ", expected, " but found ",
                t.scalar_type(), " (", name_, ")");
    const auto host = host_view(t);
    return host.is_floating_point() ? host.to(statistics_type(input_)) : host;
  }

  std::string name_;
  const at::Tensor& input_;
  at::Tensor x_;
  at::AutoDispatchBelowADInplaceOrView below_;
};

Pair stats(const at::Tensor& input, double eps) {
  const Call call("aten::batch_norm_stats", input);
  const auto dims = call.all_but_channels();
  const auto invstd = (call.x().var(dims, /*unbiased=*/false) + eps).rsqrt();
  return {call.on_gpu(call.x().mean(dims)), call.on_gpu(invstd)};
}

at::Tensor elemt(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                 const std::optional<at::Tensor>& bias, const at::Tensor& mean,
                 const at::Tensor& invstd, double /*eps*/) {
  const Call call("aten::batch_norm_elemt", input);
  auto y = (call.x() - call.per_channel(call.statistics(mean))) *
           call.per_channel(call.statistics(invstd));
  if (weight && weight->defined()) y = y * call.per_channel(call.weight(*weight));
  if (bias && bias->defined()) y = y + call.per_channel(call.weight(*bias));
  return call.on_gpu(y.to(input.scalar_type()));
}

Four backward_reduce(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean,
                     const at::Tensor& invstd, const std::optional<at::Tensor>& weight,
                     bool input_g, bool weight_g, bool bias_g) {
  const Call call("aten::batch_norm_backward_reduce", input);
  const auto dy = call.like_input(gradient);
  const auto sum_dy = call.sum(dy);
  const auto sum_dy_xmu = call.sum(dy * (call.x() - call.per_channel(call.statistics(mean))));
  const auto type = weight && weight->defined() ? weight->scalar_type() : at::kFloat;
  const auto scaled = sum_dy_xmu * call.statistics(invstd);
  return {input_g ? call.on_gpu(sum_dy) : at::Tensor(),
          input_g ? call.on_gpu(sum_dy_xmu) : at::Tensor(),
          weight_g ? call.on_gpu(scaled.to(type)) : at::Tensor(),
          bias_g ? call.on_gpu(sum_dy.to(type)) : at::Tensor()};
}

at::Tensor backward_elemt(const at::Tensor& gradient, const at::Tensor& input,
                          const at::Tensor& mean, const at::Tensor& invstd,
                          const std::optional<at::Tensor>& weight, const at::Tensor& sum_dy,
                          const at::Tensor& sum_dy_xmu, const at::Tensor& counts) {
  const Call call("aten::batch_norm_backward_elemt", input);
  const auto n = call.counts(counts).sum().to(call.x().scalar_type());
  const auto slope = call.statistics(invstd).square() * call.statistics(sum_dy_xmu) / n;
  auto dx = call.like_input(gradient) - call.per_channel(call.statistics(sum_dy) / n) -
            (call.x() - call.per_channel(call.statistics(mean))) * call.per_channel(slope);
  auto scale = call.statistics(invstd);
  if (weight && weight->defined()) scale = scale * call.weight(*weight);
  return call.on_gpu((dx * call.per_channel(scale)).to(input.scalar_type()));
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("batch_norm_stats", &stats);
  m.impl("batch_norm_elemt", &elemt);
  m.impl("batch_norm_backward_reduce", &backward_reduce);
  m.impl("batch_norm_backward_elemt", &backward_elemt);
}

}  // namespace
}  // namespace fake_cuda
