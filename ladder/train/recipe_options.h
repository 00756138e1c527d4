// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ladder/core/math.h"

namespace ladder {

// What a user may say about a recipe. What is left out, the recipe decides.
struct RecipeOptions {
  std::string name = "basicnet";                // basicnet or convnet
  std::optional<std::int64_t> epochs;           // passes over the training set; >= 0
  std::optional<std::int64_t> batch_size;       // of training, over all ranks; > 0
  std::optional<std::int64_t> eval_batch_size;  // of evaluation; > 0
  std::optional<double> lr;                     // learning rate; >= 0
  std::optional<bool> normalize;                // subtract the mean and divide by the deviation
  std::optional<std::string> head;              // log-softmax or logits
  std::uint64_t seed = 42;                      // of weights, order, dropout and augmentation
  Math math = Math::kFast;
};

}  // namespace ladder
