// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ladder/core/math.h"

namespace ladder {

// What happens to the learning rate when several ranks make the batch of the run larger: it
// stays, or is multiplied by the number of ranks (Goyal et al., 2017), or by its square root.
enum class LrScaling { kNone, kLinear, kSqrt };

// How long and how fast a recipe trains where nobody says otherwise; see Recipe for the rest.
struct RecipeDefaults {
  std::int64_t epochs = 1;
  std::int64_t batch_size = 64;
  std::int64_t eval_batch_size = 64;
  double lr = 1e-3;
};

// Those of basicnet, unless `name` is convnet.
inline RecipeDefaults recipe_defaults(std::string_view name) {
  if (name != "convnet") return {};
  return {.epochs = 3, .batch_size = 32, .eval_batch_size = 32, .lr = 1e-4};
}

// What a user may say about a recipe. What is left out, the recipe decides.
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
  std::uint64_t seed = 42;                      // of weights, order, dropout and augmentation
  Math math = Math::kFast;
  std::int64_t width = 1;  // times as many channels in the network; > 0
};

}  // namespace ladder
