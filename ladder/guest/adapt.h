// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "ladder/nn/model.h"

namespace ladder {

// A module of any class as a Model: its submodule `module`.
class AdaptedModel : public Model {
 public:
  using Forward = std::function<torch::Tensor(const Inputs& inputs)>;

  // Begins in the mode (train or eval) of `module`. Throws UsageError for nullptr.
  AdaptedModel(std::shared_ptr<torch::nn::Module> module, Forward forward);

  torch::Tensor forward(const Inputs& inputs) override { return forward_(inputs); }
  const torch::nn::Module& unwrapped() const override { return *module_; }

  // Of a module whose forward takes other arguments or returns another type. Throws UsageError.
  [[noreturn]] static torch::Tensor refuse(const Inputs& inputs);

 private:
  std::shared_ptr<torch::nn::Module> module_;
  Forward forward_;
};

// A holder of TORCH_MODULE or torch::nn, or a shared_ptr to a class derived from torch::nn::Module.
template <typename Type>
concept AnyModule = std::is_base_of_v<torch::detail::ModuleHolderIndicator, Type> ||
                    std::convertible_to<Type, std::shared_ptr<torch::nn::Module>>;

template <AnyModule Module>
auto module_pointer(const Module& module) {
  if constexpr (requires { module.ptr(); }) {
    return module.ptr();
  } else {
    return module;
  }
}

// `net` with `forward(module, inputs)`, which returns one tensor. For a network of other outputs,
// or with a forward that the compiler cannot find by itself:
//
//     auto model = ladder::adapt(lstm, [](auto& lstm, const ladder::Inputs& inputs) {
//       return std::get<0>(lstm.forward(inputs.only()));
//     });
template <AnyModule Module, typename Forward>
std::shared_ptr<Model> adapt(const Module& net, Forward forward) {
  const auto module = module_pointer(net);
  return std::make_shared<AdaptedModel>(
      module, [raw = module.get(), forward](const Inputs& inputs) -> torch::Tensor {
        return forward(*raw, inputs);
      });
}

// Whether a class has a member forward, with any arguments.
template <typename Class>
consteval bool has_forward() {
  struct Named {
    int forward;
  };
  struct Both : Class, Named {};  // the name is ambiguous if the class has it
  return !requires { &Both::forward; };
}

// The same with the module's own forward of one to four tensors, if it returns a tensor; the inputs
// are passed in their order. A Model is returned unchanged.
template <AnyModule Module>
std::shared_ptr<Model> adapt(const Module& net) {
  using Class = std::remove_cvref_t<decltype(*module_pointer(net))>;
  if constexpr (std::convertible_to<Module, std::shared_ptr<Model>>) {
    return net;
  } else if constexpr (!std::is_final_v<Class> && !has_forward<Class>()) {
    static_assert(std::is_void_v<Module>,  // never
                  "expected a module with a member forward; ladder::adapt(net, function) makes a "
                  "Model of one without");
    return nullptr;
  } else {
    return adapt(net, [](auto& module, const Inputs& inputs) -> torch::Tensor {
      const auto call =
          [&]<std::ptrdiff_t... I>(std::integer_sequence<std::ptrdiff_t, I...>) -> torch::Tensor {
        const auto at = [&](std::ptrdiff_t i) { return inputs.begin()[i].second; };
        if constexpr (requires {
                        { module.forward(at(I)...) } -> std::same_as<torch::Tensor>;
                      }) {
          return module.forward(at(I)...);
        } else {
          AdaptedModel::refuse(inputs);
        }
      };
      switch (inputs.size()) {
        case 1:
          return call(std::make_integer_sequence<std::ptrdiff_t, 1>());
        case 2:
          return call(std::make_integer_sequence<std::ptrdiff_t, 2>());
        case 3:
          return call(std::make_integer_sequence<std::ptrdiff_t, 3>());
        case 4:
          return call(std::make_integer_sequence<std::ptrdiff_t, 4>());
        default:
          AdaptedModel::refuse(inputs);
      }
    });
  }
}

template <AnyModule Module>
struct ModelMaker<Module> {
  static std::shared_ptr<Model> make(const Module& net) { return adapt(net); }
};

}  // namespace ladder
