// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/device.h"

#include <ATen/Parallel.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/cuda.h>
#include <torch/types.h>
#ifdef LADDER_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

#include <optional>

#include "ladder/core/error.h"
#include "ladder/core/memory.h"

namespace ladder {
namespace {

int gpu_count() { return static_cast<unsigned char>(torch::cuda::device_count()); }

void require_gpu(const std::string& field, const std::string& request, const c10::Device& device) {
  const int count = gpu_count();
  const int wanted = device.has_index() ? static_cast<unsigned char>(device.index()) : 0;
  if (wanted < count) return;
  throw UsageError::conflict(
      field + " " + request, fmt::format("this machine has {} GPUs", count),
      count == 0 ? "use cpu instead" : fmt::format("GPUs count from 0 to {}", count - 1));
}

// NCCL and allocations without a device use the current one.
c10::Device made_current(c10::Device device) {
#ifdef LADDER_CUDA
  c10::cuda::set_device(device.index());
#endif
  return device;
}

c10::Device named_device(const std::string& field, const std::string& request, int local_rank = 0) {
  std::optional<c10::Device> device;
  try {
    device = c10::Device(request);
  } catch (const c10::Error&) {
    device.reset();
  }
  if (!device || !(device->is_cuda() || (device->is_cpu() && !device->has_index()))) {
    throw UsageError::malformed(field, "auto, cpu, cuda or cuda:N", request);
  }
  if (device->is_cpu()) return *device;
  require_gpu(field, request, *device);
  if (device->has_index()) return made_current(*device);
  return made_current({c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank % gpu_count())});
}

// "0" is GPU 0, as in PyTorch's device_ids.
std::string with_kind(const std::string& request) {
  const bool number = !request.empty() && request.find_first_not_of("0123456789") == request.npos;
  return number ? "cuda:" + request : request;
}

std::vector<c10::Device> standard_devices(const std::string& device, const Log& log) {
  const bool all_gpus = device == "auto" || device == "cuda";
  if (!all_gpus && device != "cpu") return {choose_device(device, log)};
  std::vector<c10::Device> devices;
  for (int i = 0; all_gpus && i < gpu_count(); ++i) {
    devices.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(i));
  }
  if (devices.empty() && device == "cuda") require_gpu("device", device, c10::kCUDA);
  return devices.empty() ? std::vector<c10::Device>{c10::kCPU, c10::kCPU} : devices;
}

}  // namespace

c10::Device choose_device(const std::string& request, const Log& log, int local_rank) {
  if (request == "auto" && !torch::cuda::is_available()) {
    log.info("device: no GPU found, training on the CPU");
    return c10::kCPU;
  }
  return named_device("device", request == "auto" ? "cuda" : request, local_rank);
}

std::vector<c10::Device> choose_devices(const std::vector<std::string>& requests,
                                        const std::string& device, const Log& log) {
  std::vector<c10::Device> devices;
  for (const auto& request : requests) {
    devices.push_back(named_device("device_ids", with_kind(request)));
  }
  if (devices.empty()) devices = standard_devices(device, log);
  if (devices.front().is_cuda()) made_current(devices.front());
  std::vector<std::string> names;
  for (const auto& chosen : devices) names.push_back(chosen.str());
  log.info(fmt::format("devices: {}", fmt::join(names, ", ")));
  return devices;
}

c10::Device choose_output_device(const std::string& request,
                                 const std::vector<c10::Device>& devices) {
  return request.empty() ? devices.front() : named_device("output_device", with_kind(request));
}

at::Tensor send_to_device(const at::Tensor& tensor, const c10::Device& device) {
  const bool enters_gpu = tensor.is_cpu() && device.is_cuda();
  return (enters_gpu ? tensor.pin_memory() : tensor).to(device, /*non_blocking=*/true);
}

ThreadChoice prepare_process(const ThreadRequest& request) {
  tune_allocator();
  auto choice = choose_threads(request);
  at::set_num_threads(choice.threads);
  if (at::get_num_interop_threads() != 1) at::set_num_interop_threads(1);
  return choice;
}

}  // namespace ladder
