// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/device.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/cuda.h>
#include <torch/types.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include <atomic>
#include <optional>

#include "ladder/core/error.h"
#include "ladder/core/memory.h"
#include "ladder/core/system_limits.h"

namespace ladder {
namespace {

constexpr const char* kDriverHint = "nvidia-smi shows whether the driver works";

// A request for devices, for errors and warnings.
struct Request {
  const std::string& field;
  const std::string& text;
  const GpuSearch& search;
};

void require_gpu(const Request& request, const c10::Device& device) {
  const int count = gpu_count();
  const int wanted = device.has_index() ? static_cast<unsigned char>(device.index()) : 0;
  if (wanted < count) return;
  const auto missing = missing_gpus(count, request.search);
  const std::string others =
      count == 0 ? "use cpu instead" : fmt::format("GPUs count from 0 to {}", count - 1);
  throw UsageError::conflict(
      request.field + " " + request.text,
      missing.empty() ? fmt::format("this machine has {} GPUs", count) : missing,
      missing.empty() ? others : fmt::format("{}; {}", kDriverHint, others));
}

// A machine whose driver is broken must not train on fewer GPUs, or none, unnoticed.
void warn_of_missing_gpus(const GpuSearch& search, const Log& log) {
  const auto missing = missing_gpus(gpu_count(), search);
  if (!missing.empty()) log.warn(fmt::format("device: {}; hint: {}", missing, kDriverHint));
}

// NCCL and allocations without a device use the current one.
c10::Device made_current(c10::Device device) {
  if (device.is_cuda()) c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  return device;
}

c10::Device named_device(const Request& request, int local_rank = 0) {
  std::optional<c10::Device> device;
  try {
    device = c10::Device(request.text);
  } catch (const c10::Error&) {
    device.reset();
  }
  if (!device || !(device->is_cuda() || (device->is_cpu() && !device->has_index()))) {
    throw UsageError::malformed(request.field, "auto, cpu, cuda or cuda:N", request.text,
                                "such as cuda:0");
  }
  if (device->is_cpu()) return *device;
  require_gpu(request, *device);
  if (device->has_index()) return *device;
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank % gpu_count())};
}

// OpenMP may start fewer threads than a program sets, by its own variables. Kernels that divide
// their work by that number would leave a part undone, or wait for a thread that does not exist.
void require_openmp_threads(int threads) {
  std::atomic<int> started = 0;
#ifdef _OPENMP
  omp_set_dynamic(0);
#pragma omp parallel
  ++started;
#else
  started = threads;
#endif
  if (started == threads) return;
  throw UsageError::conflict(
      "threads", fmt::format("expected OpenMP to start {}, it starts {}", threads, started.load()),
      fmt::format("ask for {} threads, or: unset OMP_THREAD_LIMIT "
                  "OMP_MAX_ACTIVE_LEVELS",
                  started.load()));
}

// "0" is GPU 0, as in PyTorch's device_ids.
std::string with_kind(const std::string& request) {
  const bool number = !request.empty() && request.find_first_not_of("0123456789") == request.npos;
  return number ? "cuda:" + request : request;
}

std::vector<c10::Device> standard_devices(const std::string& device, const Log& log,
                                          const GpuSearch& search) {
  const bool all_gpus = device == "auto" || device == "cuda";
  if (!all_gpus && device != "cpu") return {named_device({"device", device, search})};
  std::vector<c10::Device> devices;
  for (int i = 0; all_gpus && i < gpu_count(); ++i) {
    devices.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(i));
  }
  if (devices.empty() && device == "cuda") require_gpu({"device", device, search}, c10::kCUDA);
  if (all_gpus) warn_of_missing_gpus(search, log);
  return devices.empty() ? std::vector<c10::Device>{c10::kCPU, c10::kCPU} : devices;
}

}  // namespace

int gpu_count() { return static_cast<unsigned char>(torch::cuda::device_count()); }

c10::Device choose_device(const std::string& request, const Log& log, int local_rank,
                          const GpuSearch& search) {
  const bool is_auto = request == "auto";
  const bool on_cpu = is_auto && gpu_count() == 0;
  const auto device =
      on_cpu ? c10::Device(c10::kCPU)
             : named_device({"device", is_auto ? "cuda" : request, search}, local_rank);
  if ((is_auto || request == "cuda") && local_rank == 0) warn_of_missing_gpus(search, log);
  if (on_cpu) log.info("device: no GPU found, training on the CPU");
  return made_current(device);
}

std::vector<c10::Device> choose_devices(const std::vector<std::string>& requests,
                                        const std::string& device, const Log& log,
                                        const GpuSearch& search) {
  std::vector<c10::Device> devices;
  for (const auto& request : requests) {
    devices.push_back(named_device({"device_ids", with_kind(request), search}));
  }
  if (devices.empty()) devices = standard_devices(device, log, search);
  made_current(devices.front());
  std::vector<std::string> names;
  for (const auto& chosen : devices) names.push_back(chosen.str());
  log.info(fmt::format("devices: {}", fmt::join(names, ", ")));
  return devices;
}

c10::Device choose_output_device(const std::string& request,
                                 const std::vector<c10::Device>& devices) {
  return request.empty() ? devices.front()
                         : named_device({"output_device", with_kind(request), {}});
}

at::Tensor send_to_device(const at::Tensor& tensor, const c10::Device& device) {
  const bool enters_gpu = tensor.is_cpu() && device.is_cuda();
  return (enters_gpu ? tensor.pin_memory() : tensor).to(device, /*non_blocking=*/true);
}

ThreadChoice prepare_process(const ThreadRequest& request) {
  tune_allocator();
  auto choice = choose_threads(request);
  require_stack("threads");
  require_open_files("files of the program", 8);
  require_threads("threads", choice.threads - 1);
  at::set_num_threads(choice.threads);
  require_openmp_threads(choice.threads);
  if (at::get_num_interop_threads() != 1) at::set_num_interop_threads(1);
  return choice;
}

}  // namespace ladder
