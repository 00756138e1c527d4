// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ladder/data/inputs.h"

namespace ladder {

// A network: turns Inputs into one tensor with one row per sample. Modules of other classes become
// one by adapt() (guest/adapt.h).
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
//       ...
//     };
//
// Python's counterpart: torch.nn.Module with one forward signature.
class Model : public torch::nn::Module {
 public:
  // inputs: one row per sample in each tensor. Returns one row per sample, on the same device.
  // Not thread-safe.
  virtual torch::Tensor forward(const Inputs& inputs) = 0;

  // forward, with the hooks of this module around it, as Python's module(inputs). So a network
  // calls the Models in it: FullyShardedDataParallel makes their parameters whole by hooks.
  torch::Tensor operator()(const Inputs& inputs);

  // `before` turns the inputs of each such call into those of forward, `after` its output into that
  // of the call. Python: register_forward_pre_hook, register_forward_hook.
  struct ForwardHooks {
    std::function<Inputs(const Inputs& inputs)> before;
    std::function<torch::Tensor(const torch::Tensor& output)> after;
  };
  void register_forward_hooks(ForwardHooks hooks) { hooks_.push_back(std::move(hooks)); }

  // A second model with equal values in tensors of its own, on the same device and in the same
  // modes, for wrappers with several replicas in one process, such as DataParallel. Leaves the
  // random generator unchanged; torch::nn::Module::clone does not, because it initialises again.
  // For a network that is built from one options struct: return ladder::new_network_like(*this,
  // options_). Throws UsageError unless overridden.
  virtual std::shared_ptr<Model> new_like() const;

  // The samples of a micro-batch, of a wrapper that divides each batch into some of this size;
  // 0 = of none.
  virtual std::int64_t micro_batch() const { return 0; }

  // The network within wrappers, whose names the files have.
  virtual const torch::nn::Module& unwrapped() const { return *this; }

 private:
  std::vector<ForwardHooks> hooks_;
};

// A Model around a Model, its submodule `module`, so names in its state dictionary begin with
// "module.", as in Python. Files, hashes and checks omit that prefix; a network's own child of this
// name keeps it.
class ModelWrapper : public Model {
 public:
  // Begins in the mode (train or eval) of `module`. Throws UsageError for nullptr.
  explicit ModelWrapper(std::shared_ptr<Model> module);

  // A copy of the wrapped model, without the wrapper.
  std::shared_ptr<Model> new_like() const override { return module_->new_like(); }

  const torch::nn::Module& unwrapped() const override { return module_->unwrapped(); }

  Model& module() const { return *module_; }

 protected:
  std::shared_ptr<Model> module_;
};

// Makes a Model of a module of another class, for ModelPointer. ladder/guest/adapt.h does for those
// of LibTorch.
template <typename Module>
struct ModelMaker {
  static std::shared_ptr<Model> make(const Module& /*net*/) {
    static_assert(
        std::is_void_v<Module>,  // never
        "expected a module: a std::shared_ptr to a class derived from ladder::Model; with "
        "ladder/guest/adapt.h also one to a class derived from torch::nn::Module, a holder of "
        "TORCH_MODULE or torch::nn, or ladder::adapt(...)");
    return nullptr;
  }
};

// A parameter for a network: a pointer to a Model, or what ModelMaker makes of another module.
class ModelPointer : public std::shared_ptr<Model> {
 public:
  ModelPointer() = default;
  // NOLINTBEGIN(google-explicit-constructor): the type of an argument
  ModelPointer(std::nullptr_t) {}
  ModelPointer(std::shared_ptr<Model> model) : shared_ptr(std::move(model)) {}
  template <typename Module>
  ModelPointer(const Module& net) : shared_ptr(made(net)) {}
  // NOLINTEND(google-explicit-constructor)

 private:
  template <typename Module>
  static std::shared_ptr<Model> made(const Module& net) {
    if constexpr (std::convertible_to<Module, std::shared_ptr<Model>>) {
      return net;
    } else {
      return ModelMaker<Module>::make(net);
    }
  }
};

// For the wrappers of a Model alone, called with anything else.
template <typename Module>
std::shared_ptr<Model> refuse_module(const Module& /*net*/) {
  static_assert(std::is_void_v<Module>,  // never
                "expected a std::shared_ptr to a class derived from ladder::Model; "
                "with ladder/guest/adapt.h, DistributedDataParallel takes any module");
  return nullptr;
}

// Freezes all parameters of `module` while it lives: a backward passes through it and leaves no
// gradient in it, as for the discriminator in the generator's step of a GAN.
class FreezeGuard {
 public:
  explicit FreezeGuard(torch::nn::Module& module);
  ~FreezeGuard();
  FreezeGuard(const FreezeGuard&) = delete;
  FreezeGuard& operator=(const FreezeGuard&) = delete;

 private:
  std::vector<torch::Tensor> frozen_;
};

// Model::unwrapped(), or `module` if it is no Model.
const torch::nn::Module& unwrapped(const torch::nn::Module& module);

// Throws UsageError, beginning with `where`, for a gradient that is sparse, as that of an Embedding
// with the option sparse: neither the collectives nor the kernels of optimizers take it.
void require_dense_gradient(std::string_view where, const std::string& parameter,
                            const torch::Tensor& gradient);

// Throws UsageError, beginning with `where`, for a tensor that cannot be written, because elements
// share their memory.
void require_own_elements(std::string_view where, const std::string& name,
                          const torch::Tensor& tensor);

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

// Whether `module` is in train mode. Throws UsageError for nullptr.
bool mode_of(const torch::nn::Module* module);

// The modes (train or eval) of a module, "", and of those in it, by name.
using Modes = std::vector<std::pair<std::string, bool>>;
Modes modes_of(const torch::nn::Module& module);
// A frozen layer in evaluation mode keeps it. Ignores names that `module` lacks.
void set_modes(torch::nn::Module& module, const Modes& modes);

// Evaluation mode, while it lives; then each part has its mode again.
class EvalGuard {
 public:
  explicit EvalGuard(torch::nn::Module& module) : module_(module), modes_(modes_of(module)) {
    module.eval();
  }
  ~EvalGuard() { set_modes(module_, modes_); }
  EvalGuard(const EvalGuard&) = delete;
  EvalGuard& operator=(const EvalGuard&) = delete;

 private:
  torch::nn::Module& module_;
  Modes modes_;
};

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

// The body of new_like for a network that is built from one options struct. Members that are
// neither parameters nor buffers are those that `options` give.
template <typename Network, typename Options>
std::shared_ptr<Model> new_network_like(const Network& source, const Options& options) {
  const RngStateGuard keep;
  auto copy = std::make_shared<Network>(options);
  const auto parameters = source.parameters();
  if (!parameters.empty()) copy->to(parameters.front().device());
  copy_values(source, *copy);
  set_modes(*copy, modes_of(source));
  return copy;
}

}  // namespace ladder
