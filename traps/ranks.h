// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ladder/comm/process_group.h"
#include "ladder/data/data_loader.h"
#include "ladder/nn/model.h"
#include "ladder/observe/fingerprint.h"
#include "mnist/dataset.h"
#include "mnist/recipe.h"

namespace ladder::traps {

using mnist::Recipe;
using mnist::Split;

// Parts of several demonstrations. They fork, so the parent uses no tensor: all tensors are in the
// child processes.

// Runs `fn` in `count` processes with `threads` threads each, with their ranks in the environment
// and without a process group.
void on_processes(int count, const std::function<void()>& fn, int threads = 1);

// The same with a process group.
void on_ranks(int count, const std::function<void(const ProcessGroup&)>& fn,
              std::chrono::milliseconds timeout = std::chrono::seconds(20));

// The small network with BatchNorm, at a learning rate with a visible effect within 100 steps.
Recipe quick_recipe(double lr = 0.05);

// The first `limit` images of MNIST. Uses no tensor: call it once, before the processes start.
std::shared_ptr<const mnist::Dataset> images_of(Split split, const Recipe& recipe,
                                                std::int64_t limit);

// The network of the recipe, with the weights of its seed.
std::shared_ptr<Model> seeded_model(const Recipe& recipe);

// A loader over this rank's slice of each batch of 64, in whole micro-batches if they have a size.
DataLoader divided_loader(const std::shared_ptr<const mnist::Dataset>& images,
                          const ProcessGroup& group, std::int64_t batch_size = 64,
                          std::int64_t micro_batch = 0);

// Records steps for tools/same_run, in FOLDER/SIDE.rankR.jsonl, if the variable LADDER_TRAP_RECORDS
// names a folder. The side is "mistake" or "guard"; another one records nothing.
class Recorder {
 public:
  // Of this process. `model` is the wrapper or the network before its first step.
  Recorder(const std::string& side, const torch::nn::Module& model);
  Recorder(const std::string& side, const torch::nn::Module& model, int rank, int world_size);

  bool records() const { return fingerprint_ != nullptr; }
  // A batch of an accumulation window but its last.
  void add(const Batch& batch, const torch::Tensor& loss);
  // The last batch. Call it before zero_grad(); learning rates are those of `optimizer`.
  void step(const Batch& batch, const torch::Tensor& loss, const torch::nn::Module& model,
            const torch::optim::Optimizer* optimizer = nullptr);

 private:
  std::unique_ptr<Fingerprint> fingerprint_;
  std::int64_t steps_ = 0;
};

// Steps through the loader once, as train_epoch of stage 2 does.
void train_epoch(Model& model, const DataLoader& loader, torch::optim::Optimizer& optimizer,
                 const Recipe& recipe, Recorder* recorder = nullptr);

// |a - b| / |b| over all elements, in float64.
double distance(const torch::Tensor& a, const torch::Tensor& b);
torch::Tensor flat_parameters(const torch::nn::Module& module);
torch::Tensor flat_gradients(const torch::nn::Module& module);

// Distance of rank 1's parameters from rank 0's. A collective.
double distance_between_ranks(const torch::nn::Module& module, const ProcessGroup& group);

}  // namespace ladder::traps
