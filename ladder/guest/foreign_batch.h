// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <iterator>
#include <string>
#include <tuple>
#include <type_traits>

#include "ladder/nn/state_dict.h"

namespace ladder {

// A range of batches, or a smart pointer to one, such as a loader of torch::data.
template <typename Range>
concept BatchRange =
    requires(std::remove_reference_t<Range>& range) { range.begin() != range.end(); } ||
    (!std::is_lvalue_reference_v<Range> &&
     requires(Range& range) { range->begin() != range->end(); });

// Whether `Batch` is a class with public members and without a base, whose members a structured
// binding takes: at most eight.
template <typename Batch>
struct BaseOf {
  template <typename Base>
    requires(std::is_base_of_v<Base, Batch> && !std::is_same_v<Base, Batch>)
  operator Base() const;  // NOLINT(google-explicit-constructor)
};
template <typename Batch>
constexpr bool kIsStruct = std::is_aggregate_v<Batch> && std::is_class_v<Batch> && !requires {
  Batch{BaseOf<Batch>()};
} && !requires { Batch{{}, {}, {}, {}, {}, {}, {}, {}, {}}; };

// The contents of a batch, for a comparison of the processes: tensors, numbers, texts, and what
// holds such: structs, ranges, pairs, tuples, smart pointers, a member tensors(). "" for any other
// class.
template <typename Batch>
std::string digest_of_batch(const Batch& batch) {
  std::string text;
  [[maybe_unused]] const auto add = [&text](const auto&... parts) {
    ((text += digest_of_batch(parts) + ' '), ...);
  };
  if constexpr (std::is_convertible_v<Batch, torch::Tensor>) {
    const torch::Tensor tensor = batch;
    return tensor.defined() ? tensor_digest(tensor) : "";
  } else if constexpr (std::is_arithmetic_v<Batch> || std::is_enum_v<Batch>) {
    add(torch::scalar_tensor(static_cast<double>(batch), torch::kDouble));
  } else if constexpr (requires { std::string(batch); }) {
    return std::string(batch);
  } else if constexpr (requires { batch.tensors(); }) {
    add(batch.tensors());
  } else if constexpr (requires { std::begin(batch) != std::end(batch); }) {
    for (const auto& each : batch) {
      if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(each)>, Batch>) add(each);
    }
  } else if constexpr (requires { std::tuple_size<Batch>::value; }) {
    std::apply(add, batch);
  } else if constexpr (requires { *batch, batch.operator->(), static_cast<bool>(batch); }) {
    if (batch) add(*batch);
  } else if constexpr (kIsStruct<Batch>) {
    if constexpr (std::is_empty_v<Batch>) {
    } else if constexpr (requires { Batch{{}, {}, {}, {}, {}, {}, {}, {}}; }) {
      const auto& [a, b, c, d, e, f, g, h] = batch;
      add(a, b, c, d, e, f, g, h);
    } else if constexpr (requires { Batch{{}, {}, {}, {}, {}, {}, {}}; }) {
      const auto& [a, b, c, d, e, f, g] = batch;
      add(a, b, c, d, e, f, g);
    } else if constexpr (requires { Batch{{}, {}, {}, {}, {}, {}}; }) {
      const auto& [a, b, c, d, e, f] = batch;
      add(a, b, c, d, e, f);
    } else if constexpr (requires { Batch{{}, {}, {}, {}, {}}; }) {
      const auto& [a, b, c, d, e] = batch;
      add(a, b, c, d, e);
    } else if constexpr (requires { Batch{{}, {}, {}, {}}; }) {
      const auto& [a, b, c, d] = batch;
      add(a, b, c, d);
    } else if constexpr (requires { Batch{{}, {}, {}}; }) {
      const auto& [a, b, c] = batch;
      add(a, b, c);
    } else if constexpr (requires { Batch{{}, {}}; }) {
      const auto& [a, b] = batch;
      add(a, b);
    } else if constexpr (requires { Batch{{}}; }) {
      const auto& [a] = batch;
      add(a);
    }
  } else if constexpr (requires { batch.data, batch.target; }) {
    add(batch.data, batch.target);
  } else if constexpr (requires { batch.data; }) {
    add(batch.data);
  }
  return text;
}

}  // namespace ladder
