// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/clip_grad.h"

#include <torch/utils.h>

#include "ladder/core/error.h"
#include "ladder/nn/model.h"
#include "ladder/optim/network_part.h"

namespace ladder {
namespace {

// Added to the norm before dividing by it, as in Python.
constexpr double kSmallest = 1e-6;

// Those with elements: nothing is the largest of none.
std::vector<torch::Tensor> gradients_of(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : unique_tensors(parameters)) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    require_dense_gradient("clip_grad", "a parameter", gradient);
    gradients.push_back(gradient);
  }
  return gradients;
}

void require_not_negative(const char* name, double value) {
  if (!(value >= 0.0)) {
    throw UsageError::out_of_range(name, value, "a value >= 0", "such as 1.0");
  }
}

}  // namespace

torch::Tensor clip_grad_norm_(const std::vector<torch::Tensor>& parameters, double max_norm,
                              double norm_type) {
  require_not_negative("clip_grad_norm_ max_norm", max_norm);
  const torch::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  const auto stages = only_group_of_parts("clip_grad_norm_", parameters);
  if (gradients.empty() && !stages) return torch::zeros({});
  auto norms = gradients.empty() ? parameters.front().new_empty({0})
                                 : torch::stack(at::_foreach_norm(gradients, norm_type));
  if (stages) norms = torch::cat(stages->all_gather(norms));  // in the order of the layers
  if (norms.numel() == 0) return torch::zeros({});
  const auto total = torch::linalg_vector_norm(norms, norm_type);
  if (!gradients.empty())
    at::_foreach_mul_(gradients, (max_norm / (total + kSmallest)).clamp_max(1.0));
  return total;
}

void clip_grad_value_(const std::vector<torch::Tensor>& parameters, double clip_value) {
  require_not_negative("clip_grad_value_ clip_value", clip_value);
  const torch::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  if (gradients.empty()) return;
  at::_foreach_clamp_min_(gradients, -clip_value);
  at::_foreach_clamp_max_(gradients, clip_value);
}

}  // namespace ladder
