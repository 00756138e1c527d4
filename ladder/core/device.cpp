// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/device.h"

#include <ATen/Parallel.h>
#include <fmt/core.h>
#include <torch/cuda.h>
#include <torch/types.h>

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

void require_gpu(const std::string& request, const c10::Device& device) {
  const int count = static_cast<unsigned char>(torch::cuda::device_count());
  const int wanted = device.has_index() ? static_cast<unsigned char>(device.index()) : 0;
  if (wanted < count) return;
  throw UsageError::conflict("--device " + request, fmt::format("this machine has {} GPUs", count),
                             count == 0 ? "use --device cpu, or leave the flag out"
                                        : fmt::format("GPUs count from 0 to {}", count - 1));
}

}  // namespace

c10::Device choose_device(const std::string& request, const Log& log) {
  if (request == "auto") {
    if (torch::cuda::is_available()) return {c10::kCUDA, 0};
    log.info("device: no GPU found, training on the CPU");
    return c10::kCPU;
  }
  const auto device = parse_device(request);
  if (!device) {
    throw UsageError::malformed("--device", "auto, cpu, cuda or cuda:N", request);
  }
  if (device->is_cuda()) require_gpu(request, *device);
  return *device;
}

ThreadChoice prepare_process(const ThreadRequest& request) {
  tune_allocator();
  auto choice = choose_threads(request);
  at::set_num_threads(choice.threads);
  if (at::get_num_interop_threads() != 1) at::set_num_interop_threads(1);
  return choice;
}

}  // namespace ladder
