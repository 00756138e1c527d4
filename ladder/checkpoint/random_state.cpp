// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/random_state.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/device.h"
#include "ladder/core/error.h"
#include "ladder/core/tensor_form.h"
#include "ladder/core/text.h"
#include "ladder/io/json.h"

namespace ladder {
namespace {

constexpr const char* kCpu = "cpu";
constexpr const char* kCuda = "cuda";

at::Generator generator_of(const torch::Device& device) {
  return at::globalContext().defaultGenerator(device);
}

torch::Tensor state_of(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

// The GPUs by the names of their states: the process's own is "cuda", the others are "cuda.1", ...
std::map<std::string, torch::Device> gpus_by_name(const torch::Device& own) {
  std::map<std::string, torch::Device> gpus;
  if (!own.is_cuda()) return gpus;
  gpus.emplace(kCuda, own);
  const auto index =
      own.has_index() ? own.index() : c10::impl::VirtualGuardImpl(own.type()).getDevice().index();
  for (int other = 0; other < gpu_count(); ++other) {
    if (other == index) continue;
    gpus.emplace(fmt::format("{}.{}", kCuda, gpus.size()),
                 torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(other)));
  }
  return gpus;
}

bool names_a_gpu(const std::string& name) {
  const std::string_view text = name;
  const auto prefix = std::string_view(kCuda).size();
  return text == kCuda || (text.starts_with(kCuda) && text.substr(prefix, 1) == "." &&
                           parse_number<int>(text.substr(prefix + 1)).value_or(0) > 0);
}

[[noreturn]] void refuse(std::string_view origin, const std::string& expected,
                         const std::string& got) {
  throw DataError::mismatch(origin, expected, got,
                            "it must come from random_state, or from Python's get_rng_state");
}

}  // namespace

StateDict random_state(const torch::Device& device) {
  StateDict result = {{kCpu, state_of(generator_of(torch::kCPU))}};
  for (const auto& [name, gpu] : gpus_by_name(device)) {
    result.emplace(name, state_of(generator_of(gpu)));
  }
  return result;
}

std::function<void()> plan_load_random_state(const StateDict& state, const torch::Device& device,
                                             std::string_view origin) {
  if (!state.contains(kCpu)) refuse(origin, fmt::format("a tensor {}", kCpu), "none");
  auto devices = gpus_by_name(device);
  devices.emplace(kCpu, torch::kCPU);
  std::vector<std::pair<at::Generator, torch::Tensor>> loads;
  for (const auto& [name, tensor] : state) {
    if (name != kCpu && !names_a_gpu(name)) {
      refuse(origin, fmt::format("only {0}, {1} and {1}.N", kCpu, kCuda), quoted_for_message(name));
    }
    const auto found = devices.find(name);
    if (found == devices.end()) continue;  // of a GPU that is not here
    const auto generator = generator_of(found->second);
    try {  // only a generator of the same kind can check the bytes
      generator.clone().set_state(tensor);
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      refuse(origin, fmt::format("the state of a generator as {}", name),
             TensorForm::of_values(tensor).text() + ": " + text.substr(0, text.find('\n')));
    }
    loads.emplace_back(generator, tensor);
  }
  return [loads] {
    for (auto [generator, tensor] : loads) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(tensor);
    }
  };
}

}  // namespace ladder
