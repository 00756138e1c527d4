// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ladder {

// The inputs of a network: named tensors in a fixed order, each with one row per sample. One tensor
// converts to Inputs.
//
//     model.forward(images);                                  // one input, named "x"
//     model.forward({{"image", images}, {"text", texts}});    // two inputs
//
// Copies share the tensors. Python's counterpart: the keyword arguments of Module.forward.
class Inputs {
 public:
  using Named = std::pair<std::string, torch::Tensor>;

  Inputs() = default;
  Inputs(torch::Tensor only);  // NOLINT(google-explicit-constructor): a tensor is one input
  // Throws UsageError for a name that is empty or occurs twice.
  Inputs(std::initializer_list<Named> named);

  // Throws UsageError unless there is exactly one tensor.
  const torch::Tensor& only() const;

  // Throws UsageError, with the nearest name, if no tensor is called `name`.
  const torch::Tensor& at(std::string_view name) const;
  bool contains(std::string_view name) const;

  // Adds a tensor at the end, or replaces the one of that name.
  void set(std::string_view name, torch::Tensor tensor);

  std::size_t size() const { return named_.size(); }
  bool empty() const { return named_.empty(); }
  std::vector<Named>::const_iterator begin() const { return named_.begin(); }
  std::vector<Named>::const_iterator end() const { return named_.end(); }

  // Rows of every tensor: the number of samples. Throws UsageError without tensors, for a scalar,
  // and if the tensors differ.
  std::int64_t rows() const;

  // The device of the first tensor. Throws UsageError without tensors.
  torch::Device device() const { return first().second.device(); }

  // The same names with `change` applied to each tensor.
  Inputs map(const std::function<torch::Tensor(const torch::Tensor&)>& change) const;

  // At most `parts` pieces of consecutive rows, divided as torch::Tensor::chunk divides.
  std::vector<Inputs> chunk(std::int64_t parts) const;

  // Pieces of `size` consecutive rows; the last may be shorter. Without rows, none.
  std::vector<Inputs> split(std::int64_t size) const;

 private:
  template <typename Cut>
  std::vector<Inputs> pieces(const Cut& cut) const;
  const Named& first() const;

  std::vector<Named> named_;
};

}  // namespace ladder
