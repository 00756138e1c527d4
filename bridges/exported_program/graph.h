// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/data/inputs.h"

namespace ladder::exported {

using Values = std::vector<c10::IValue>;  // of slots, arguments or results
using Slot = std::size_t;

// The device of the inputs, which replaces the device that the export has seen.
inline constexpr Slot kDeviceSlot = 0;

// An argument of a call: a constant, the value of a slot, or a list of such values.
struct Argument {
  c10::IValue constant = {};
  std::optional<Slot> slot = {};
  bool is_tensor = false;      // a number becomes one: Python passes the 2 of `tensor + 2` as it is
  c10::TypePtr elements = {};  // of a list; nullptr = no list
  std::vector<Argument> items = {};

  c10::IValue value(const Values& slots) const;
};

// One operator with its arguments, and the slots of its results.
struct Call {
  std::string name;                        // for messages: the operator and its line of Python
  std::function<void(Values& stack)> run;  // replaces the arguments by the results
  std::vector<Argument> arguments;
  struct Result {
    bool is_list = false;
    std::vector<Slot> slots;  // one; of a list, one per tensor
  };
  std::vector<Result> results;
  std::vector<Slot> last_uses;  // slots that no later call reads
};

// A size of an input: exactly `least`, or from `least` to `most` and equal wherever its symbol is.
struct Size {
  std::string symbol;  // "s77"; empty = a constant
  std::int64_t least = 0;
  std::int64_t most = 0;
};

// A model of a .pt2 file: calls of LibTorch's operators, in an order that was checked. Nothing is
// called while a file is read, and no part of it is changed afterwards, so threads may share it.
struct Graph {
  enum class Kind { kParameter, kBuffer, kConstant };  // a constant is in no state dictionary
  struct Weight {
    Kind kind = Kind::kParameter;
    std::string name;
    Slot slot = 0;
    std::size_t tensor = 0;  // of the module; tied weights share one
  };
  struct Input {
    std::string name;
    Slot slot = 0;
    std::vector<Size> sizes;
  };

  std::vector<Weight> weights;
  std::vector<Input> inputs;
  std::vector<Call> calls;
  std::vector<Slot> outputs;
  std::size_t slots = 0;

  // Runs the calls with autograd. Moves constants among `tensors` to the device of the inputs: they
  // are no buffers, so to() does not. Throws UsageError for inputs of other sizes than the export
  // allows.
  std::vector<torch::Tensor> run(std::vector<torch::Tensor>& tensors, const Inputs& inputs) const;

 private:
  void set_inputs(const Inputs& named, Values& values) const;
};

// Reads models/NAME.json of a .pt2 file. Throws DataError, which begins with `where`, for another
// version of the schema, an operator outside aten, host control flow, an unknown kind of argument:
// each with its name and its line of Python.
Graph read_graph(const nlohmann::json& program, const std::string& where);

// An operator of Python on sizes, such as "_operator.mul", by its name in a .pt2 file; nullptr for
// an unknown name. `b` is that of a binary one.
struct HostOperator {
  std::size_t arguments = 0;
  c10::IValue (*run)(const c10::IValue& a, const c10::IValue& b) = nullptr;
};
const HostOperator* find_host_operator(std::string_view name);

}  // namespace ladder::exported
