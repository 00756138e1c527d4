// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "mnist/networks.h"

namespace mnist {

// Scaling of the learning rate where several ranks make the batch of the run larger: none, by the
// number of ranks (Goyal et al., 2017), or by its square root.
enum class LrScaling { kNone, kLinear, kSqrt };

// The defaults of a recipe's numbers; see Recipe for the rest.
struct RecipeDefaults {
  std::int64_t epochs = 1;
  std::int64_t batch_size = 64;
  std::int64_t eval_batch_size = 64;
  double lr = 1e-3;
  std::string head = "log-softmax";
  bool normalize = true;
};

// Those of basicnet, unless `name` is convnet.
inline RecipeDefaults recipe_defaults(std::string_view name) {
  if (name != "convnet") return {};
  return {.epochs = 3,
          .batch_size = 32,
          .eval_batch_size = 32,
          .lr = 1e-4,
          .head = "logits",
          .normalize = false};
}

// The largest channel multiplier: BasicNet has 4.9 billion parameters then.
inline constexpr std::int64_t kLargestWidth = 64;

// The choices of a user; the recipe has the rest.
struct RecipeOptions {
  std::string name = "basicnet";                // basicnet or convnet
  std::optional<std::int64_t> epochs;           // passes over the training set; >= 0
  std::optional<std::int64_t> batch_size;       // of training, over all ranks; > 0
  std::optional<std::int64_t> eval_batch_size;  // of evaluation; > 0
  std::optional<double> lr;                     // learning rate; >= 0
  LrScaling scale_lr = LrScaling::kNone;        // with the number of ranks
  std::string scheduler = "none";               // none; step: every 30 epochs, a tenth of it
  std::optional<bool> normalize;                // subtract the mean and divide by the deviation
  std::optional<std::string> head;              // log-softmax or logits
  double label_smoothing = 0.0;                 // part of the target on all classes alike
  std::uint64_t seed = 42;                      // for weights, shuffling, dropout, augmentation
  Math math = Math::kFast;
  std::int64_t width = 1;  // channel multiplier; 1 to kLargestWidth
};

}  // namespace mnist
