// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <typeinfo>

#include "ladder/comm/process_group.h"
#include "ladder/nn/model.h"
#include "ladder/nn/state_dict.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "tests/support/training.h"

namespace ladder {

inline std::shared_ptr<DistributedDataParallel> wrapped(
    const std::shared_ptr<Model>& model, const ProcessGroup& group,
    const DistributedDataParallelOptions& options = {}) {
  return std::make_shared<DistributedDataParallel>(model, group, options);
}

// Whether all ranks have the same bits. Every rank returns the same.
inline bool equal_on_all_ranks(const torch::Tensor& tensor, const ProcessGroup& group) {
  const auto all = group.all_gather(tensor.cpu());
  return std::all_of(all.begin(), all.end(),
                     [&](const auto& other) { return torch::equal(other, all.front()); });
}

inline void expect_equal_on_all_ranks(const torch::Tensor& tensor, const ProcessGroup& group) {
  EXPECT_TRUE(equal_on_all_ranks(tensor, group));
}

inline std::set<std::string> names_of(const torch::nn::Module& module, const char* prefix = "") {
  std::set<std::string> names;
  for (const auto& [name, tensor] : state_dict(module)) names.insert(prefix + name);
  return names;
}

// A wrapper names its tensors as Python's does, and gives a copy of its network without itself.
inline void expect_names_and_copy_of_wrapper(const Model& wrapper, const Model& network) {
  EXPECT_EQ(names_of(wrapper), names_of(network, "module."));
  EXPECT_EQ(wrapper.parameters().size(), network.parameters().size());
  const auto copy = wrapper.new_like();
  const Model& copied = *copy;
  EXPECT_EQ(typeid(copied), typeid(network));
  EXPECT_EQ(names_of(*copy), names_of(network));
  for (std::size_t i = 0; i < network.parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(copy->parameters()[i], network.parameters()[i])) << i;
    EXPECT_FALSE(copy->parameters()[i].is_alias_of(network.parameters()[i])) << i;
    EXPECT_TRUE(wrapper.parameters()[i].is_same(network.parameters()[i])) << "for an optimizer";
  }
}

// Of a wrapper of a convnet that has copies of it.
inline void expect_sees_weights_that_are_loaded_or_exchanged(Model& wrapper, Model& network) {
  torch::manual_seed(9);
  const auto other = convnet().make_model();
  const auto images = random_batch(4).inputs.only();
  const torch::NoGradGuard no_grad;
  wrapper.eval();
  other->eval();
  const auto distance = [&] {
    return relative_difference(wrapper.forward(images), other->forward(images));
  };
  EXPECT_GE(distance(), 0.1);
  load_state_dict(wrapper, state_dict(*other), "a test");
  EXPECT_LE(distance(), 1e-6);
  other->parameters().back().add_(1.0);
  EXPECT_GE(distance(), 0.1);
  network.parameters().back().set_data(other->parameters().back().clone());
  EXPECT_LE(distance(), 1e-6);
}

}  // namespace ladder
