// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <vector>

namespace ladder {
namespace {

void copy_each(const std::vector<torch::Tensor>& source, const std::vector<torch::Tensor>& target) {
  TORCH_CHECK(source.size() == target.size(), "copy_values: expected ", target.size(),
              " tensors, got ", source.size());
  for (std::size_t i = 0; i < source.size(); ++i) target[i].copy_(source[i]);
}

}  // namespace

torch::Tensor at_least_float32(const torch::Tensor& tensor) {
  return tensor.to(torch::promote_types(tensor.scalar_type(), torch::kFloat32));
}

void copy_values(const torch::nn::Module& source, torch::nn::Module& target) {
  const torch::NoGradGuard no_grad;
  copy_each(source.parameters(), target.parameters());
  copy_each(source.buffers(), target.buffers());
}

RngStateGuard::RngStateGuard() : state_(at::detail::getDefaultCPUGenerator().get_state()) {}

RngStateGuard::~RngStateGuard() {
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(state_);
}

}  // namespace ladder
