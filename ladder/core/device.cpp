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

std::optional<c10::Device> parse_device(const std::string& text) {
  try {
    const c10::Device device(text);
    if (device.is_cuda() || (device.is_cpu() && !device.has_index())) return device;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

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
  const auto device = parse_device(request);
  if (!device) throw UsageError::malformed(field, "auto, cpu, cuda or cuda:N", request);
  if (device->is_cpu()) return *device;
  require_gpu(field, request, *device);
  if (device->has_index()) return made_current(*device);
  const int index = local_rank % gpu_count();
  return made_current({c10::kCUDA, static_cast<c10::DeviceIndex>(index)});
}

// "0" is GPU 0, as in the lists of the tutorials.
std::string with_kind(const std::string& request) {
  const bool number = !request.empty() && request.find_first_not_of("0123456789") == request.npos;
  return number ? "cuda:" + request : request;
}

std::vector<c10::Device> all_gpus() {
  std::vector<c10::Device> gpus;
  for (int i = 0; i < gpu_count(); ++i) {
    gpus.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(i));
  }
  return gpus;
}

std::vector<c10::Device> standard_devices(const std::string& device, const Log& log) {
  const bool any_gpu = device == "auto" || device == "cuda";
  if (!any_gpu && device != "cpu") return {choose_device(device, log)};
  auto devices = any_gpu ? all_gpus() : std::vector<c10::Device>{};
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

ThreadChoice prepare_process(const ThreadRequest& request) {
  tune_allocator();
  auto choice = choose_threads(request);
  at::set_num_threads(choice.threads);
  if (at::get_num_interop_threads() != 1) at::set_num_interop_threads(1);
  return choice;
}

}  // namespace ladder
