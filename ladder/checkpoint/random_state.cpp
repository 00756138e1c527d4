// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/random_state.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/json.h"

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

[[noreturn]] void refuse(std::string_view origin, const std::string& expected,
                         const std::string& got) {
  throw DataError::mismatch(origin, expected, got,
                            "it must come from random_state, or from Python's get_rng_state");
}

}  // namespace

StateDict random_state(const torch::Device& device) {
  StateDict result = {{kCpu, state_of(generator_of(torch::kCPU))}};
  if (device.is_cuda()) result.emplace(kCuda, state_of(generator_of(device)));
  return result;
}

std::function<void()> plan_load_random_state(const StateDict& state, const torch::Device& device,
                                             std::string_view origin) {
  if (!state.contains(kCpu)) refuse(origin, fmt::format("a tensor {}", kCpu), "none");
  std::vector<std::pair<at::Generator, torch::Tensor>> loads;
  for (const auto& [name, tensor] : state) {
    if (name != kCpu && name != kCuda) {
      refuse(origin, fmt::format("only {} and {}", kCpu, kCuda), quoted_for_message(name));
    }
    if (name == kCuda && !device.is_cuda()) continue;
    const auto generator = generator_of(name == kCpu ? torch::Device(torch::kCPU) : device);
    try {  // only a generator of the same kind can check the bytes
      generator.clone().set_state(tensor);
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      refuse(origin, fmt::format("the state of a generator as {}", name),
             fmt::format("{} [{}]: {}", c10::toString(tensor.scalar_type()),
                         fmt::join(tensor.sizes(), ","), text.substr(0, text.find('\n'))));
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
