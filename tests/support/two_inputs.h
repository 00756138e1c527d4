// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>

#include "ladder/data/batch.h"
#include "ladder/nn/model.h"

namespace ladder {

// A network that takes an image [N, 8] and a token, int64 [N]. Equal weights wherever it is made.
class TwoInputNet : public Model {
 public:
  TwoInputNet() {
    const RngStateGuard same_numbers_after;
    torch::manual_seed(5);
    image_ = register_module("image", torch::nn::Linear(8, 4));
    token_ = register_module("token", torch::nn::Embedding(10, 4));
  }

  torch::Tensor forward(const Inputs& inputs) override {
    return image_->forward(inputs.at("image")).tanh() * token_->forward(inputs.at("token"));
  }

  std::shared_ptr<Model> new_like() const override {
    auto copy = std::make_shared<TwoInputNet>();
    copy_values(*this, *copy);
    return copy;
  }

 private:
  torch::nn::Linear image_ = nullptr;
  torch::nn::Embedding token_ = nullptr;
};

// Rows `begin` to `begin + size` of a batch of 7 that `world_size` ranks share.
inline Batch two_input_batch(std::int64_t begin = 0, std::int64_t size = 7,
                             std::int64_t world_size = 1) {
  const RngStateGuard same_numbers_after;
  torch::manual_seed(6);
  const auto part = [&](const torch::Tensor& whole) { return whole.narrow(0, begin, size); };
  const auto images = torch::randn({7, 8});
  return {.inputs = {{"image", part(images)}, {"token", part(torch::randint(10, {7}))}},
          .global_size = 7,
          .world_size = world_size};
}

inline torch::Tensor two_input_loss(Model& model, const Batch& batch) {
  return batch.num_items().mean(model.forward(batch.inputs).square().sum());
}

}  // namespace ladder
