// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ladder/core/error.h"

namespace ladder {

ModelWrapper::ModelWrapper(std::shared_ptr<Model> module) {
  Model::train(mode_of(module.get()));  // before the child is registered: the wrapper alone
  module_ = register_module("module", std::move(module));
}

torch::Tensor Model::operator()(const Inputs& inputs) {
  if (hooks_.empty()) return forward(inputs);
  auto own = inputs;
  for (const auto& hook : hooks_) own = hook.before(own);
  auto output = forward(own);
  for (const auto& hook : hooks_) output = hook.after(output);
  return output;
}

std::shared_ptr<Model> Model::new_like() const {
  throw UsageError::conflict(name(), "new_like() is not overridden, and replicas need it",
                             "return ladder::new_network_like(*this, options_), or use "
                             "DistributedDataParallel, which needs none");
}

FreezeGuard::FreezeGuard(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) {
    if (!parameter.requires_grad()) continue;
    parameter.set_requires_grad(false);
    frozen_.push_back(parameter);
  }
}

FreezeGuard::~FreezeGuard() {
  for (auto& parameter : frozen_) parameter.set_requires_grad(true);
}

const torch::nn::Module& unwrapped(const torch::nn::Module& module) {
  const auto* const model = dynamic_cast<const Model*>(&module);
  return model == nullptr ? module : model->unwrapped();
}

void require_own_elements(std::string_view where, const std::string& name,
                          const torch::Tensor& tensor) {
  if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) return;
  throw UsageError::conflict(where,
                             fmt::format("elements of {} share memory, as after expand()", name),
                             "register tensor.contiguous() in the module");
}

void require_dense_gradient(std::string_view where, const std::string& parameter,
                            const torch::Tensor& gradient) {
  if (gradient.layout() == torch::kStrided) return;
  throw UsageError::conflict(where, fmt::format("the gradient of {} is sparse", parameter),
                             "leave sparse(false) in the options of torch::nn::Embedding");
}

std::vector<torch::Tensor> unique_tensors(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> result;
  std::unordered_set<const void*> known;
  for (const auto& tensor : tensors) {
    if (known.insert(tensor.unsafeGetTensorImpl()).second) result.push_back(tensor);
  }
  return result;
}

std::vector<NamedTensor> unique_tensors(
    const torch::OrderedDict<std::string, torch::Tensor>& named) {
  std::vector<NamedTensor> result;
  std::unordered_map<const void*, std::size_t> known;
  for (const auto& item : named) {
    const auto place = known.emplace(item.value().unsafeGetTensorImpl(), result.size()).first;
    if (place->second == result.size()) result.push_back({item.value(), {}});
    result[place->second].names.push_back(item.key());
  }
  return result;
}

std::vector<torch::Tensor> unique_tensors(const torch::nn::Module& module) {
  auto all = module.parameters();
  const auto buffers = module.buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  return unique_tensors(all);
}

std::int64_t micro_batch_of(const torch::nn::Module& model) {
  const auto* const own = dynamic_cast<const Model*>(&model);
  if (own != nullptr && own->micro_batch() > 0) return own->micro_batch();
  std::int64_t found = 0;
  for (const auto& child : model.children()) found = std::max(found, micro_batch_of(*child));
  return found;
}

torch::Tensor at_least_float32(const torch::Tensor& tensor) {
  return tensor.to(torch::promote_types(tensor.scalar_type(), torch::kFloat32));
}

bool mode_of(const torch::nn::Module* module) {
  if (module != nullptr) return module->is_training();
  throw UsageError::missing("model", "a module", "create it first: std::make_shared<Net>()");
}

Modes modes_of(const torch::nn::Module& module) {
  Modes modes = {{"", module.is_training()}};
  for (const auto& part : module.named_modules("", /*include_self=*/false)) {
    modes.emplace_back(part.key(), part.value()->is_training());
  }
  return modes;
}

void set_modes(torch::nn::Module& module, const Modes& modes) {
  const bool on = modes.front().second;
  if (module.is_training() != on) module.train(on);
  const auto parts = module.named_modules("", /*include_self=*/false);
  for (const auto& [name, training] : modes) {
    const auto* const part = parts.find(name);
    if (part != nullptr && (*part)->is_training() != training) (*part)->train(training);
  }
}

void copy_values(const torch::nn::Module& source, torch::nn::Module& target) {
  const torch::NoGradGuard no_grad;
  const auto copy = [](const std::vector<torch::Tensor>& from,
                       const std::vector<torch::Tensor>& to) {
    TORCH_CHECK(from.size() == to.size(), "copy_values: expected ", to.size(), " tensors, got ",
                from.size());
    for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  };
  copy(source.parameters(), target.parameters());
  copy(source.buffers(), target.buffers());
}

void require_on_device(std::string_view where, const torch::nn::Module& module,
                       const torch::Device& device) {
  for (const auto& item : module.named_parameters()) {
    if (item.value().device() == device) continue;
    throw UsageError::conflict(where,
                               fmt::format("{} is on {}, expected {}", item.key(),
                                           item.value().device().str(), device.str()),
                               "move the model before wrapping it: model->to(device)");
  }
}

RngStateGuard::RngStateGuard() : state_(at::detail::getDefaultCPUGenerator().get_state()) {}

RngStateGuard::~RngStateGuard() {
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(state_);
}

}  // namespace ladder
