// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ladder/data/batch.h"
#include "ladder/data/dataset.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/nn/model.h"
#include "ladder/optim/lr_scheduler.h"
#include "mnist/networks.h"
#include "mnist/recipe_options.h"

namespace mnist {

// Normalises a pixel p in 0 ... 255 to (p / 255 - mean) / std.
struct Normalization {
  double mean = 0.0;
  double std = 1.0;

  // The value of a black pixel after it: the fill of a shifted image.
  float background() const { return (0.0F - static_cast<float>(mean)) / static_cast<float>(std); }
};

// Mean and standard deviation of the MNIST training pixels, as in the PyTorch example.
inline constexpr Normalization kMnistNormalization = {0.1307, 0.3081};

// Everything that defines a training run, but not how it is carried out: network, loss, optimizer,
// batch size, epochs, input. The stages differ in the how and share this.
//
//   basicnet   BasicNet, nll_loss, AdamW lr 1e-3, batch 64, 1 epoch, normalised input:
//              the PyTorch example as in "From PyTorch DDP to Accelerate to Trainer"
//   convnet    ConvNet, cross-entropy, SGD lr 1e-4, batch 32, 3 epochs, input only / 255:
//              the DDP-practice tutorial
//   stack      StackNet on images of a formula (formula_files), the rest as basicnet
class Recipe {
 public:
  // Throws UsageError for an unknown name or head and for a number outside its range.
  // `world_size`: ranks whose batches add up, by which the options may scale the learning rate.
  explicit Recipe(const RecipeOptions& options, int world_size = 1);

  // Draws the initial weights from PyTorch's generator: call torch::manual_seed before.
  std::shared_ptr<ladder::Model> make_model() const;
  std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      std::vector<torch::Tensor> parameters) const;

  // For a DataLoader of training images: moves each by up to two pixels at random. Empty unless
  // `augment`.
  std::shared_ptr<const ladder::Transform> make_transform(bool augment) const;

  // Steps once per epoch, on every rank: equal learning rates keep the replicas equal.
  std::unique_ptr<ladder::LrScheduler> make_scheduler(torch::optim::Optimizer& optimizer) const;

  // The loss to differentiate: the mean over the batch of all ranks; see NumItems::mean.
  torch::Tensor loss(const torch::Tensor& output, const ladder::Batch& batch) const;
  torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& targets,
                     const ladder::NumItems& num_items) const;

  // The same as a function, for a Trainer.
  std::function<torch::Tensor(const torch::Tensor& output, const torch::Tensor& targets,
                              const ladder::NumItems& num_items)>
  loss_function() const;

  // The loss as a sum over samples, for an evaluation.
  ladder::LossSum criterion() const;

  // The result line of the tutorial: "Accuracy: 98.41" or "Accuracy is 91.55%". `accuracy` in
  // percent.
  std::string accuracy_line(double accuracy) const;

  const std::string& name() const { return options_.name; }
  std::int64_t epochs() const { return *options_.epochs; }
  std::int64_t batch_size() const { return *options_.batch_size; }
  std::int64_t eval_batch_size() const { return *options_.eval_batch_size; }
  double lr() const { return *options_.lr; }
  Head head() const { return options_.head == "logits" ? Head::kLogits : Head::kLogSoftmax; }
  Math math() const { return options_.math; }
  std::uint64_t seed() const { return options_.seed; }
  const Normalization& normalization() const { return normalization_; }

 private:
  torch::Tensor loss_sum(const torch::Tensor& output, const torch::Tensor& targets) const;

  RecipeOptions options_;  // complete
  Normalization normalization_;
};

}  // namespace mnist
