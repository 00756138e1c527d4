// SPDX-License-Identifier: Apache-2.0
#include "bridges/exported_program/graph.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <map>
#include <utility>

#include "ladder/core/error.h"

namespace ladder::exported {
namespace {

std::string text_of(const Size& size) {
  if (size.least == size.most) return fmt::format("{}", size.least);
  auto text = size.symbol.empty() ? "any" : size.symbol;
  if (size.least > 0) text += fmt::format(" >= {}", size.least);
  if (size.most < std::numeric_limits<std::int64_t>::max())
    text += fmt::format(" <= {}", size.most);
  return text;
}

void require_sizes(const Graph::Input& input, const torch::Tensor& tensor,
                   std::map<std::string, std::int64_t>& symbols) {
  const auto sizes = tensor.sizes();
  bool fits = sizes.size() == input.sizes.size();
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < input.sizes.size(); ++i) {
    const auto& expected = input.sizes[i];
    texts.push_back(text_of(expected));
    fits = fits && expected.least <= sizes[i] && sizes[i] <= expected.most &&
           (expected.symbol.empty() ||
            symbols.emplace(expected.symbol, sizes[i]).first->second == sizes[i]);
  }
  if (fits) return;
  throw UsageError::malformed(
      "input " + input.name, fmt::format("sizes [{}]", fmt::join(texts, ", ")),
      fmt::format("[{}]", fmt::join(sizes, ", ")),
      "name the dimensions that vary as dynamic_shapes when you export the network");
}

}  // namespace

c10::IValue Argument::value(const Values& slots) const {
  if (elements) {
    c10::impl::GenericList list(elements);
    for (const auto& item : items) list.push_back(item.value(slots));
    return list;
  }
  const auto& value = slot ? slots[*slot] : constant;
  if (!is_tensor || !value.isScalar()) return value;
  return at::native::wrapped_scalar_tensor(value.toScalar());
}

void Graph::set_inputs(const Inputs& named, Values& values) const {
  std::map<std::string, std::int64_t> symbols;
  for (const auto& input : inputs) {
    const auto& tensor = inputs.size() == 1 ? named.only() : named.at(input.name);
    require_sizes(input, tensor, symbols);
    values[input.slot] = tensor;
  }
  values[kDeviceSlot] = named.device();
}

std::vector<torch::Tensor> Graph::run(std::vector<torch::Tensor>& tensors,
                                      const Inputs& named) const {
  Values values(slots);
  set_inputs(named, values);
  for (const auto& weight : weights) {
    auto& tensor = tensors[weight.tensor];
    if (weight.kind == Kind::kConstant) tensor = tensor.to(named.device());
    values[weight.slot] = tensor;
  }
  Values stack;
  for (const auto& call : calls) {
    stack.clear();
    for (const auto& argument : call.arguments) stack.push_back(argument.value(values));
    try {
      call.run(stack);
    } catch (c10::Error& error) {
      error.add_context("in " + call.name);
      throw;
    }
    for (std::size_t i = 0; i < call.results.size(); ++i) {
      const auto& result = call.results[i];
      if (!result.is_list) {
        values[result.slots.front()] = std::move(stack.at(i));
        continue;
      }
      auto list = stack.at(i).toTensorVector();
      TORCH_CHECK(list.size() == result.slots.size(), call.name, ": expected ", result.slots.size(),
                  " tensors, got ", list.size());
      for (std::size_t k = 0; k < list.size(); ++k) values[result.slots[k]] = std::move(list[k]);
    }
    for (const auto slot : call.last_uses) values[slot] = {};
  }
  std::vector<torch::Tensor> results;
  for (const auto slot : outputs) results.push_back(values[slot].toTensor());
  return results;
}

}  // namespace ladder::exported
