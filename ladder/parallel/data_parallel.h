// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>
#include <optional>
#include <vector>

#include "ladder/nn/model.h"

namespace ladder {

struct DataParallelOptions {
  std::vector<torch::Device> device_ids;       // one replica each; the model is on the first
  std::optional<torch::Device> output_device;  // where outputs are gathered; unset = the first
};

// A Model around a Model that runs on several devices of one process, one thread each.
//
// A forward cuts the batch into one part a device (scatter), brings the present weights to
// the replicas (replicate), runs them side by side, and puts the outputs together on
// `output_device` (gather). The backward runs the same way back: each replica computes
// the gradients of its part, and their sum, in the order of the devices, becomes the gradient
// of the wrapped model. The optimizer sees that model alone.
//
//     auto model = std::make_shared<DataParallel>(network,
//         DataParallelOptions{.device_ids = {torch::kCPU, torch::kCPU}});
//     auto loss = criterion(model->forward(batch.inputs), batch);
//
// One process and one loop, so little to change in a program, but a price in each step: weights
// go out, gradients come in and outputs meet on one device, which also needs the most memory.
// In Python the threads also wait for each other's interpreter lock; here there is none. Its
// own authors recommend DistributedDataParallel even on one machine.
//
// Devices may repeat: {cpu, cpu} are two replicas that divide the CPU's threads, so that the
// mechanism can be seen without a GPU. With one device the model is called as it is. A batch
// with fewer samples than devices uses as many devices as samples.
//
// Grad mode, autocast and the random scope of the calling thread hold in the replicas. Replica 0
// shares the buffers of the model, so BatchNorm's running statistics come from the first part of
// each batch; those of the other replicas are dropped, as in Python. A layer that draws from
// PyTorch's own generator on the CPU gets its numbers in the order in which the threads come.
//
// The replicas are kept from step to step; LibTorch's torch::nn::parallel::data_parallel makes
// them anew, which moves the random generator and loses BatchNorm's statistics. A backward can
// be run once, and not be differentiated again. The wrapped model is the submodule `module`.
//
// Python's counterpart: torch.nn.DataParallel.
class DataParallel : public Model {
 public:
  // Throws UsageError without devices, and unless the whole model lies on the first one.
  DataParallel(std::shared_ptr<Model> module, DataParallelOptions options);
  ~DataParallel() override;
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // The inputs may be on any device. Throws UsageError if the model was moved since.
  torch::Tensor forward(const Inputs& inputs) override;

  // A copy of the wrapped model, without the wrapper.
  std::shared_ptr<Model> new_like() const override { return module_->new_like(); }

  Model& module() { return *module_; }

 private:
  class Replicas;

  std::shared_ptr<Model> module_;
  torch::Device output_device_;
  std::shared_ptr<Replicas> replicas_;  // none with one device; graphs hold it too
};

}  // namespace ladder
