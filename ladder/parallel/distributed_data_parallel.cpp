// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/distributed_data_parallel.h"

#include <ATen/record_function.h>

#include <utility>

#include "ladder/core/error.h"

namespace ladder {
namespace {

torch::Device checked_device(const torch::nn::Module& module,
                             const std::vector<torch::Device>& device_ids) {
  if (device_ids.size() > 1) {
    throw UsageError::out_of_range("device_ids", device_ids.size(), "one device per process",
                                   "start one process per device, or use DataParallel");
  }
  const auto parameters = module.parameters();
  const auto device = !device_ids.empty()  ? device_ids.front()
                      : parameters.empty() ? torch::Device(torch::kCPU)
                                           : parameters.front().device();
  require_on_device("DistributedDataParallel", module, device);
  return device;
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(ModelPointer module, ProcessGroup group,
                                                 DistributedDataParallelOptions options)
    : ReplicatedModel(std::move(module)),
      device_(checked_device(*module_, options.device_ids)),
      output_device_(options.output_device.value_or(device_)),
      broadcast_buffers_(options.reducer.broadcast_buffers),
      reducer_(std::make_unique<GradientReducer>(*module_, std::move(group),
                                                 std::move(options.reducer))) {
  reducer_->send_buffers_before_forward();
}

torch::Tensor DistributedDataParallel::forward(const Inputs& inputs) {
  RECORD_USER_SCOPE("DistributedDataParallel.forward");  // for StepTrace
  const auto moved = [this](const torch::Tensor& tensor) { return tensor.to(device_); };
  const auto output = reducer_->forward([&] { return module_->forward(inputs.map(moved)); });
  return output.to(output_device_);
}

void DistributedDataParallel::train(bool on) {
  Model::train(on);
  if (!on && broadcast_buffers_) reducer_->broadcast_buffers();
}

}  // namespace ladder
