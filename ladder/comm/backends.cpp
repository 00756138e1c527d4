// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/backends.h"

#include <fmt/core.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <algorithm>
#include <utility>
#include <vector>

#include "ladder/comm/gloo_backend.h"
#include "ladder/comm/process_group_options.h"
#include "ladder/core/device.h"
#include "ladder/core/gpus.h"

namespace ladder {
namespace {

using Type = c10d::ProcessGroup::BackendType;

// The GPUs that the ranks of this machine can use. CUDA is asked, as choose_device does: a rank
// whose driver is broken must not wait for NCCL with tensors on the CPU.
int usable_gpus(const ProcessGroupOptions& options, const LaunchEnvironment& launch) {
  // Ranks that all name the same GPU, such as cuda:0, share it.
  const bool shared = options.device.find(':') != std::string::npos && launch.local_world_size > 1;
  return shared ? std::min(gpu_count(), 1) : gpu_count();
}

// NCCL needs one GPU per rank; its own error for two ranks on one GPU is late and cryptic.
bool has_gpus(const ProcessGroupOptions& options, const LaunchEnvironment& launch) {
  // Ranks on the CPU never call CUDA.
  if (options.backend != "nccl" && options.device == "cpu") return false;
  const int gpus = usable_gpus(options, launch);
  return gpus > 0 && gpus >= launch.local_world_size;
}

UsageError missing_gpu(const ProcessGroupOptions& options, const LaunchEnvironment& launch) {
  const int gpus = usable_gpus(options, launch);
  const auto missing = missing_gpus(gpu_count());
  return UsageError::conflict(
      "backend nccl",
      fmt::format("{} ranks on this machine but {} GPU{}{}", launch.local_world_size, gpus,
                  gpus == 1 ? "" : "s", missing.empty() ? "" : fmt::format(" ({})", missing)),
      missing.empty() ? "start as many ranks as GPUs, or use backend gloo, which can share them"
                      : "nvidia-smi shows whether the driver works; or use backend gloo");
}

DeviceBackends make_gloo_alone(ProcessGroup::Setup& setup, const C10dStore& store) {
  const auto gloo = c10::make_intrusive<Gloo>(store, setup);
  return {gloo, gloo};
}

DeviceBackends make_nccl([[maybe_unused]] ProcessGroup::Setup& setup,
                         [[maybe_unused]] const C10dStore& store) {
#ifdef USE_C10D_NCCL
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = setup.timeout;
  const auto gloo = c10::make_intrusive<Gloo>(store, setup);
  const auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::make_intrusive<c10d::PrefixStore>("cuda/", store), setup.rank, setup.world_size,
      options);
  return {gloo, nccl, Type::GLOO, Type::NCCL};
#else
  throw UsageError::conflict("backend nccl", "this LibTorch was built without NCCL",
                             "use backend gloo, or a LibTorch with CUDA");
#endif
}

std::vector<Backend>& table() {
  static std::vector<Backend> rows = {
      {"single", [](const auto&, const auto& launch) { return launch.world_size == 1; },
       make_single, nullptr},
      {"nccl", has_gpus, make_nccl, missing_gpu},
      {"gloo", [](const auto&, const auto&) { return true; }, make_gloo_alone, nullptr}};
  return rows;
}

}  // namespace

const Backend& find_backend(const std::string& name) {
  return *std::ranges::find(table(), name, &Backend::name);
}

const Backend& find_backend(const ProcessGroupOptions& options, const LaunchEnvironment& launch) {
  const auto suits = [&](const Backend& row) { return row.suits(options, launch); };
  if (options.backend == "auto") return *std::ranges::find_if(table(), suits);
  if (!backend_names().contains(options.backend)) {
    throw UsageError::unknown_name("backend", options.backend, backend_choices());
  }
  const auto& row = find_backend(options.backend);
  if (!suits(row)) throw row.refused(options, launch);
  return row;
}

bool add_backend(Backend backend, const std::string& condition) {
  backend_names().emplace(backend.name, condition);
  table().insert(table().end() - 1, std::move(backend));
  return true;
}

}  // namespace ladder
