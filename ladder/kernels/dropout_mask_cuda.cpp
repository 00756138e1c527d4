// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/dropout_mask_cuda.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#ifdef LADDER_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/core.h>
#include <nvrtc.h>

#include <filesystem>
#include <map>
#include <mutex>
#endif

#include "ladder/core/device.h"

namespace ladder {

namespace {

bool are_equally_far_apart(std::span<const long long> positions, long long step) {
  for (std::size_t i = 1; i < positions.size(); ++i) {
    if (positions[i] - positions[i - 1] != step) return false;
  }
  return true;
}

}  // namespace

CounterMaskArguments counter_mask_arguments(const torch::Tensor& mask, const RandomKey& key,
                                            const DropoutMaskOptions& options) {
  static_assert(sizeof(long long) == sizeof(std::int64_t));
  TORCH_CHECK(key.positions.is_contiguous());
  const auto layout = sample_layout(mask);
  const bool on_gpu = !key.positions.is_cpu();
  const std::span positions(static_cast<const long long*>(key.positions.const_data_ptr()),
                            on_gpu ? 0 : static_cast<std::size_t>(key.positions.numel()));
  const long long step = positions.size() < 2 ? 0 : positions[1] - positions[0];
  const bool computes = !on_gpu && are_equally_far_apart(positions, step);
  return {.mask = mask.mutable_data_ptr<float>(),
          .positions = computes ? nullptr : positions.data(),
          .with_epochs = on_gpu,
          .first = positions.empty() ? 0 : positions[0],
          .step = step,
          .seed = key.seed,
          .epoch = static_cast<unsigned>(key.epoch),
          .layer = static_cast<unsigned>(options.layer),
          .samples = static_cast<unsigned>(mask.size(0)),
          .elements = static_cast<unsigned>(layout.elements()),
          .channels = static_cast<unsigned>(layout.channels),
          .threshold = drop_threshold(options),
          .kept = kept_scale(options)};
}

std::array<unsigned, 2> counter_mask_blocks(const CounterMaskArguments& arguments) {
  constexpr unsigned kElements = 4 * kCounterMaskThreads;
  return {(arguments.elements + kElements - 1) / kElements,
          std::min(arguments.samples, kCounterMaskSamples)};
}

#ifdef LADDER_CUDA

// The texts of philox_constants.h, counter_mask_arguments.h and dropout_mask.cu. CMake writes this
// function.
const char* counter_mask_text();

namespace {

constexpr const char* kKernelName = "counter_mask";

// NVRTC, with one program. Loaded when it is needed: 100 MB that a run on the CPU does without.
class Nvrtc {
 public:
  explicit Nvrtc(const char* source)
      : library_(open(fmt::format("libnvrtc.so.{}", CUDART_VERSION / 1000))) {
    // LibTorch's own link to NVRTC, for a LibTorch that gives the library another name.
    if (library_ == nullptr) library_ = open("libcaffe2_nvrtc.so");
    TORCH_CHECK(library_ != nullptr, "NVRTC: ", ::dlerror());
    open_builtins();
    check(function<decltype(nvrtcCreateProgram)>("nvrtcCreateProgram")(
        &program_, source, kKernelName, 0, nullptr, nullptr));
  }
  ~Nvrtc() { function<decltype(nvrtcDestroyProgram)>("nvrtcDestroyProgram")(&program_); }
  Nvrtc(const Nvrtc&) = delete;
  Nvrtc& operator=(const Nvrtc&) = delete;

  std::string compile(const std::string& architecture) const {
    const auto target = "-arch=" + architecture;
    const std::array<const char*, 2> options = {target.c_str(), "-std=c++17"};
    const auto status = function<decltype(nvrtcCompileProgram)>("nvrtcCompileProgram")(
        program_, static_cast<int>(options.size()), options.data());
    TORCH_CHECK(status == NVRTC_SUCCESS, "NVRTC for ", architecture, ": ",
                bytes("nvrtcGetProgramLogSize", "nvrtcGetProgramLog"));
    return bytes("nvrtcGetCUBINSize", "nvrtcGetCUBIN");
  }

 private:
  static void* open(const std::string& name) {
    return ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  }

  // NVRTC looks for them by name alone, which finds those of a CUDA toolkit, not those beside it in
  // the folder of a wheel. If they are not there either, it reports that itself.
  void open_builtins() const {
    Dl_info nvrtc = {};
    if (::dladdr(::dlsym(library_, "nvrtcCreateProgram"), &nvrtc) == 0) return;
    open(std::filesystem::path(nvrtc.dli_fname)
             .replace_filename(fmt::format("libnvrtc-builtins.so.{}.{}", CUDART_VERSION / 1000,
                                           CUDART_VERSION % 1000 / 10)));
  }

  template <typename Function>
  Function* function(const char* name) const {
    auto* const found = reinterpret_cast<Function*>(::dlsym(library_, name));
    TORCH_CHECK(found != nullptr, "NVRTC: ", ::dlerror());
    return found;
  }

  void check(nvrtcResult status) const {
    TORCH_CHECK(status == NVRTC_SUCCESS,
                "NVRTC: ", function<decltype(nvrtcGetErrorString)>("nvrtcGetErrorString")(status));
  }

  // A result, by NVRTC's functions for its size and its bytes.
  std::string bytes(const char* get_size, const char* get) const {
    std::size_t size = 0;
    check(function<decltype(nvrtcGetCUBINSize)>(get_size)(program_, &size));
    std::string result(size, '\0');
    check(function<decltype(nvrtcGetCUBIN)>(get)(program_, result.data()));
    return result;
  }

  void* library_;
  nvrtcProgram program_ = nullptr;
};

std::string architecture_of(c10::DeviceIndex gpu) {
  int major = 0;
  int minor = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu));
  return fmt::format("sm_{}{}", major, minor);
}

// Compiled and loaded once per architecture; CUDA loads it into each GPU that launches it.
cudaKernel_t kernel_for(c10::DeviceIndex gpu) {
  static std::mutex mutex;
  static std::map<std::string, cudaKernel_t> kernels;
  const auto architecture = architecture_of(gpu);
  const std::lock_guard lock(mutex);
  if (const auto known = kernels.find(architecture); known != kernels.end()) return known->second;
  const auto code = compile_counter_mask(architecture);
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  C10_CUDA_CHECK(
      cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  C10_CUDA_CHECK(cudaLibraryGetKernel(&kernel, library, kKernelName));
  kernels.emplace(architecture, kernel);
  return kernel;
}

}  // namespace

std::string compile_counter_mask(const std::string& architecture) {
  return Nvrtc(counter_mask_text()).compile(architecture);
}

torch::Tensor counter_mask_cuda(const torch::Tensor& input, const RandomKey& key,
                                const DropoutMaskOptions& options) {
  const c10::cuda::CUDAGuard guard(input.device());
  const auto mask = empty_mask(input);
  auto arguments = counter_mask_arguments(mask, key, options);
  torch::Tensor positions;
  if (arguments.positions != nullptr) {
    positions = send_to_device(key.positions, input.device());
    arguments.positions = static_cast<const long long*>(positions.const_data_ptr());
  }
  void* pointers[] = {&arguments};
  const auto [x, y] = counter_mask_blocks(arguments);
  C10_CUDA_CHECK(cudaLaunchKernel(kernel_for(input.get_device()), dim3(x, y),
                                  dim3(kCounterMaskThreads), pointers, /*sharedMem=*/0,
                                  c10::cuda::getCurrentCUDAStream()));
  return mask;
}

#endif

}  // namespace ladder
