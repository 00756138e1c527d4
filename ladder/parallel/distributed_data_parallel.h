// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>
#include <optional>
#include <vector>

#include "ladder/comm/process_group.h"
#include "ladder/nn/model.h"
#include "ladder/parallel/gradient_reducer.h"
#include "ladder/parallel/replicated_model.h"

namespace ladder {

struct DistributedDataParallelOptions {
  std::vector<torch::Device> device_ids;       // the device of the model; empty = its present one
  std::optional<torch::Device> output_device;  // of the output; unset = the device of the model
  GradientReducerOptions reducer = {};
};

// A Model around a Model or, with guest/adapt.h, a module of any class, of which every rank has a
// replica, kept equal on all of them.
//
// Each rank runs forward and backward on samples of its own; while backward runs, the gradients are
// averaged over the ranks (see GradientReducer for the contract).
//
//     auto model = std::make_shared<DistributedDataParallel>(network, group);
//     auto loss = criterion(model->forward(batch.inputs), batch);
//     loss.backward();                                               // averages
//     optimizer.step();
//
// Gradients are averaged too if the loop calls the network's own forward, with any arguments and
// any result; see GradientReducer. A module that returns a tuple, such as torch::nn::LSTM,
// compiles, but forward() of this class throws UsageError for it: call the module's own, or pass
// adapt() with a function.
//
// The wrapped model is the submodule `module`, so names in the state dictionary begin with
// "module.", as in Python; load_state_dict takes them with and without.
//
// eval() is a collective when the model has buffers: it sends rank 0's to all, so that all ranks
// evaluate, and save, the same model. Then forward() sends nothing while gradients are off
// (torch::NoGradGuard), so ranks may evaluate different numbers of batches.
class DistributedDataParallel : public ReplicatedModel {
 public:
  // Throws UsageError unless the model is on one device, that of device_ids if given.
  DistributedDataParallel(ModelPointer module, ProcessGroup group,
                          DistributedDataParallelOptions options = {});

  torch::Tensor forward(const Inputs& inputs) override;

  void train(bool on = true) override;

  // See GradientReducer::no_sync.
  [[nodiscard]] GradientReducer::NoSync no_sync(bool when = true) override {
    return reducer_->no_sync(when);
  }

  GradientReducer& reducer() { return *reducer_; }

 private:
  torch::Device device_;
  torch::Device output_device_;
  bool broadcast_buffers_;
  std::unique_ptr<GradientReducer> reducer_;
};

}  // namespace ladder
