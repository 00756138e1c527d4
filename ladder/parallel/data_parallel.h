// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <concepts>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ladder/nn/model.h"

namespace ladder {

struct DataParallelOptions {
  std::vector<torch::Device> device_ids;       // one replica each; the model is on the first
  std::optional<torch::Device> output_device;  // of the gathered outputs; unset = the first
};

// A Model around a Model that runs on several devices of one process, one thread each.
//
// A forward cuts the batch into one part per device (scatter), copies the weights to the replicas
// (replicate), runs them in parallel, and joins the outputs on `output_device` (gather). In
// backward each replica computes the gradients of its part; their sum, in the order of the devices,
// becomes the gradient of the wrapped model. The optimizer uses that model alone.
//
//     auto model = std::make_shared<DataParallel>(network,
//         DataParallelOptions{.device_ids = {torch::kCPU, torch::kCPU}});
//     auto loss = criterion(model->forward(batch.inputs), batch);
//
// Devices may repeat: {cpu, cpu} are two replicas that divide the CPU's threads. With one device
// the model is called directly. A batch with fewer samples than devices uses as many as samples.
//
// Grad mode, autocast and the random scope of the calling thread apply in the replicas. Replica 0
// shares the buffers of the model, so BatchNorm's running statistics come from the first part of
// each batch; those of the other replicas are dropped, as in Python. Layers that draw from
// PyTorch's CPU generator get their numbers in an order that depends on the threads.
//
// A backward runs once and cannot be differentiated again. The wrapped model is the submodule
// `module`. Python's counterpart: torch.nn.DataParallel.
class DataParallel : public ModelWrapper {
 public:
  // Throws UsageError without devices, and unless the whole model is on the first one.
  DataParallel(std::shared_ptr<Model> module, DataParallelOptions options);
  template <typename Module>
    requires(!std::convertible_to<Module, std::shared_ptr<Model>>)
  DataParallel(const Module& other, DataParallelOptions options)
      : DataParallel(refuse_module(other), std::move(options)) {}
  ~DataParallel() override;
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // The inputs may be on any device. Throws UsageError if the model was moved since.
  torch::Tensor forward(const Inputs& inputs) override;

 private:
  class Replicas;

  torch::Device output_device_;
  std::shared_ptr<Replicas> replicas_;  // null with one device; graphs hold it too
};

}  // namespace ladder
