// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ladder/core/largest_counts.h"
#include "ladder/io/option_table.h"
#include "mnist/networks.h"

namespace mnist {

// Scaling of the learning rate where several ranks make the batch of the run larger: none, by the
// number of ranks (Goyal et al., 2017), or by its square root.
enum class LrScaling { kNone, kLinear, kSqrt };

// The largest channel multiplier: BasicNet has 4.9 billion parameters then.
inline constexpr std::int64_t kLargestWidth = 64;
inline constexpr std::int64_t kLargestDepth = 1024;

// The choices of a user; the recipe has the rest.
struct RecipeOptions {
  std::string name = "basicnet";                // basicnet, convnet or stack
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
  bool tf32 = false;                  // TensorFloat-32 in matrix products on a GPU
  std::int64_t width = 1;             // channel multiplier; 1 to kLargestWidth
  std::optional<std::int64_t> depth;  // layers of stack, and of no other; 1 to kLargestDepth
  std::string network;                // .pt2 file of export_network.py; empty = the recipe's
};

// `options`, with the recipe's defaults where the user chose nothing: those of basicnet, unless the
// name is convnet; stack has a depth too. Recipe has the rest.
inline RecipeOptions with_defaults(RecipeOptions options) {
  const bool is_convnet = options.name == "convnet";
  options.epochs = options.epochs.value_or(is_convnet ? 3 : 1);
  options.batch_size = options.batch_size.value_or(is_convnet ? 32 : 64);
  options.eval_batch_size = options.eval_batch_size.value_or(is_convnet ? 32 : 64);
  options.lr = options.lr.value_or(is_convnet ? 1e-4 : 1e-3);
  options.head = options.head.value_or(is_convnet ? "logits" : "log-softmax");
  options.normalize = options.normalize.value_or(!is_convnet);
  if (options.name == "stack") options.depth = options.depth.value_or(NetworkOptions{}.depth);
  return options;
}

namespace tables {

using R = RecipeOptions;
using enum ladder::Effect;

inline constexpr ladder::OptionDetails kBatchSize{1.0, ladder::kMaxSamplesPerBatch};

inline constexpr ladder::Option<R> kRecipe[] = {
    ladder::option<&R::name>(kWeights, "recipe", "basicnet|convnet|stack",
                             "network, loss, optimizer and their defaults; stack: equal layers, "
                             "images of a formula"),
    ladder::option<&R::epochs>(kTogether, "epochs", "N", "epochs to train [1; convnet: 3]",
                               {0.0, ladder::kMaxEpochs}),
    ladder::option<&R::batch_size>(kTraining, "batch_size", "N",
                                   "images per step [64; convnet: 32]", kBatchSize),
    ladder::option<&R::eval_batch_size>(kTogether, "eval_batch_size", "N",
                                        "images per evaluation step [64; convnet: 32]", kBatchSize),
    ladder::option<&R::lr>(kOptimizer, "lr", "X", "learning rate [1e-3; convnet: 1e-4]", {0.0}),
    ladder::option<&R::head>(kWeights, "head", "log-softmax|logits",
                             "output of the network [log-softmax; convnet: logits]"),
    ladder::option<&R::width>(kWeights, "width", "N", "channel multiplier", {1.0, kLargestWidth}),
    ladder::option<&R::depth>(kWeights, "depth", "N", "layers of the stack [8]",
                              {1.0, kLargestDepth}),
    ladder::option<&R::network>(kWeights, "network", "PATH",
                                "network from Python, a file of export_network.py [the recipe's]",
                                {.role = ladder::PathRole::kRead}),
    ladder::option<&R::normalize>(kWeights, "normalize", "",
                                  "subtract mean 0.1307, divide by 0.3081 [yes; convnet: no]"),
    ladder::option<&R::math>(kWeights, "math", "fast|reference",
                             "arithmetic; reference: bit-equal to Python, slower"),
    ladder::option<&R::seed>(kTraining, "seed", "N",
                             "seed for weights, shuffling, dropout, augmentation", {0.0}),
};
// Not of a Trainer, which has arguments for it.
inline constexpr ladder::Option<R> kScheduler[] = {
    ladder::option<&R::scheduler>(kTraining, "scheduler", "none|step",
                                  "learning-rate schedule; step: a tenth every 30 epochs"),
    ladder::option<&R::tf32>(kTraining, "tf32", "", "TensorFloat-32 matrix products on a GPU"),
};
// Of several ranks.
inline constexpr ladder::Option<R> kScaling[] = {
    ladder::option<&R::scale_lr>(kTraining, "scale_lr", "none|linear|sqrt",
                                 "scaling of the learning rate with the ranks, for per-device"),
};

}  // namespace tables

}  // namespace mnist
