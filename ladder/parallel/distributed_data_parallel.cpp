// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/distributed_data_parallel.h"

#include <ATen/record_function.h>
#include <fmt/core.h>
#include <torch/types.h>

#include <string>
#include <utility>

#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr const char* kName = "DistributedDataParallel";

// The device that all parameters share.
torch::Device device_of(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  if (parameters.empty()) return torch::kCPU;
  for (const auto& parameter : parameters) {
    if (parameter.device() == parameters.front().device()) continue;
    throw UsageError::conflict(
        kName,
        fmt::format("the model lies on {} and on {}", parameters.front().device().str(),
                    parameter.device().str()),
        "move it to one device before it is wrapped");
  }
  return parameters.front().device();
}

torch::Device checked_device(const torch::nn::Module& module,
                             const std::vector<torch::Device>& device_ids) {
  const auto device = device_of(module);
  if (device_ids.empty() || (device_ids.size() == 1 && device_ids.front() == device)) {
    return device;
  }
  if (device_ids.size() > 1) {
    throw UsageError::out_of_range("device_ids", device_ids.size(), "one device a process",
                                   "start a process for each; for one process use DataParallel");
  }
  throw UsageError::conflict(kName,
                             fmt::format("the model lies on {}, device_ids says {}", device.str(),
                                         device_ids.front().str()),
                             "model->to(device) comes before it is wrapped");
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(std::shared_ptr<Model> module, ProcessGroup group,
                                                 DistributedDataParallelOptions options)
    : module_(register_module("module", std::move(module))),
      device_(checked_device(*module_, options.device_ids)),
      output_device_(options.output_device.value_or(device_)),
      broadcast_buffers_(options.reducer.broadcast_buffers),
      reducer_(std::make_unique<GradientReducer>(*module_, std::move(group),
                                                 std::move(options.reducer))) {}

torch::Tensor DistributedDataParallel::forward(const Inputs& inputs) {
  RECORD_USER_SCOPE("DistributedDataParallel.forward");  // a box in the trace
  const auto moved = [this](const torch::Tensor& tensor) { return tensor.to(device_); };
  return reducer_->forward([&] { return module_->forward(inputs.map(moved)).to(output_device_); });
}

void DistributedDataParallel::train(bool on) {
  Model::train(on);
  if (!on && broadcast_buffers_) reducer_->broadcast_buffers();
}

}  // namespace ladder
