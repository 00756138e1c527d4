// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/data/inputs.h"

namespace ladder {

// A network: turns Inputs into one tensor with one row per sample.
//
// Wrappers (DataParallel, DistributedDataParallel, AutocastModel) are ModelWrappers. So one
// training loop serves every way of training.
//
//     class MyNet : public ladder::Model {
//      public:
//       explicit MyNet(MyOptions options);  // registers its layers
//       torch::Tensor forward(const ladder::Inputs& inputs) override {
//         return fc_->forward(inputs.only());
//       }
//       std::shared_ptr<Model> new_like() const override {
//         return ladder::new_network_like(*this, options_);
//       }
//       ...
//     };
//
// A network with several outputs joins them in one tensor, or uses GradientReducer directly.
// Python's counterpart: torch.nn.Module with one forward signature.
class Model : public torch::nn::Module {
 public:
  // inputs: one row per sample in each tensor. Returns one row per sample, on the same device.
  // Not thread-safe.
  virtual torch::Tensor forward(const Inputs& inputs) = 0;

  // A second model with equal values in tensors of its own, on the same device and in the same
  // mode. Leaves the random generator unchanged; torch::nn::Module::clone does not, because it
  // initialises again.
  virtual std::shared_ptr<Model> new_like() const = 0;

  // The samples of a micro-batch, of a wrapper that divides each batch into some of this size;
  // 0 = of none.
  virtual std::int64_t micro_batch() const { return 0; }
};

// A Model around a Model, its submodule `module`, so names in its state dictionary begin with
// "module.", as in Python. Files, hashes and checks omit that prefix; a network's own child of this
// name keeps it.
class ModelWrapper : public Model {
 public:
  // Begins in the mode (train or eval) of `module`.
  explicit ModelWrapper(std::shared_ptr<Model> module);

  // A copy of the wrapped model, without the wrapper.
  std::shared_ptr<Model> new_like() const override { return module_->new_like(); }

  Model& module() const { return *module_; }

 protected:
  std::shared_ptr<Model> module_;
};

// `module` without the ModelWrappers around it.
const torch::nn::Module& unwrapped(const torch::nn::Module& module);

// Each of `tensors` once. LibTorch's lists of a module hold a tensor that layers share (tied
// weights) once for each of its names.
std::vector<torch::Tensor> unique_tensors(const std::vector<torch::Tensor>& tensors);

// The same with all names of each.
struct NamedTensor {
  torch::Tensor tensor;
  std::vector<std::string> names;  // in the order of the module; the first is that of files
};
std::vector<NamedTensor> unique_tensors(
    const torch::OrderedDict<std::string, torch::Tensor>& named);

// The parameters, then the buffers of `module`, each once.
std::vector<torch::Tensor> unique_tensors(const torch::nn::Module& module);

// The micro-batch of `model` or of a module in it; 0 = there is none.
std::int64_t micro_batch_of(const torch::nn::Module& model);

// `tensor` in float32, or unchanged if it is float64.
torch::Tensor at_least_float32(const torch::Tensor& tensor);

// Copies every parameter and buffer of `source` into `target`, in order, without autograd. Both
// must be of the same class; devices may differ.
void copy_values(const torch::nn::Module& source, torch::nn::Module& target);

// Throws UsageError, beginning with `where`, unless all parameters of `module` are on `device`.
void require_on_device(std::string_view where, const torch::nn::Module& module,
                       const torch::Device& device);

// Restores the state of the CPU random generator at the end of the scope.
class RngStateGuard {
 public:
  RngStateGuard();
  ~RngStateGuard();
  RngStateGuard(const RngStateGuard&) = delete;
  RngStateGuard& operator=(const RngStateGuard&) = delete;

 private:
  torch::Tensor state_;
};

// The body of new_like for a network that is built from one options struct.
template <typename Network, typename Options>
std::shared_ptr<Model> new_network_like(const Network& source, const Options& options) {
  const RngStateGuard keep;
  auto copy = std::make_shared<Network>(options);
  const auto parameters = source.parameters();
  if (!parameters.empty()) copy->to(parameters.front().device());
  copy_values(source, *copy);
  copy->train(source.is_training());
  return copy;
}

}  // namespace ladder
