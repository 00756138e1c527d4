// SPDX-License-Identifier: Apache-2.0
#include "ladder/stage/run_main.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

int report(std::string_view text, ExitCode code) {
  fmt::print(stderr, "error: {}\n", text);
  return static_cast<int>(code);
}

constexpr std::string_view kOutOfMemory = "out of memory; hint: lower --batch-size";

// LibTorch's allocators have errors of their own.
bool is_out_of_memory(const std::exception& error) {
  const std::string_view text = error.what();
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         text.find("alloc_cpu.cpp") != std::string_view::npos ||
         text.find("out of memory") != std::string_view::npos;
}

// A stream that the caller closed would otherwise be the next file that is opened: its records
// and our lines would land in one file.
void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    const int opened = ::open("/dev/null", O_RDWR);
    if (opened >= 0 && opened != stream) ::dup2(opened, stream);
  }
}

// Errors of LibTorch carry a stack trace of many lines behind the message.
std::string without_stack_trace(const std::exception& error) {
  std::string text = error.what();
  if (environment_variable("TORCH_SHOW_CPP_STACKTRACES")) return text;
  const auto end = text.find('\n');
  if (end == std::string::npos) return text;
  return text.substr(0, end) + "; hint: TORCH_SHOW_CPP_STACKTRACES=1 shows where it happened";
}

bool is_gpu_device(const std::string& name) {
  constexpr std::string_view kPrefix = "nvidia";
  const bool is_nvidia = name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
                         std::isdigit(static_cast<unsigned char>(name[kPrefix.size()])) != 0;
  return is_nvidia || name == "dxg";  // dxg: a GPU as Windows hands it to Linux
}

// Counted without CUDA, whose first call would forbid a later fork.
bool machine_has_gpu() {
  std::error_code ignored;
  const std::filesystem::directory_iterator devices("/dev", ignored);
  return std::any_of(begin(devices), end(devices), [](const auto& entry) {
    return is_gpu_device(entry.path().filename().string());
  });
}

// Hides all other GPUs. From then on "auto" means a GPU: a number that this machine does not
// have must not end in training on the CPU.
void show_only_chosen_gpus(RunOptions& options) {
  if (options.gpu.empty()) return;
  const std::string list = fmt::format("{}", fmt::join(options.gpu, ","));
  if (!machine_has_gpu()) {
    throw UsageError::conflict("--gpu " + list, "this machine has no GPU",
                               "leave the flag out, or use --device cpu");
  }
  ::setenv("CUDA_VISIBLE_DEVICES", list.c_str(), /*replace=*/1);
  if (options.device == "auto") options.device = "cuda";
}

}  // namespace

int run_main(int argc, char** argv, const std::function<void(const RunOptions&)>& run) {
  try {
    occupy_standard_streams();
    auto command_line = parse_command_line(argc, argv);
    if (!command_line.options) {
      fmt::print("{}", command_line.text);
      return static_cast<int>(ExitCode::kOk);
    }
    show_only_chosen_gpus(*command_line.options);
    run(*command_line.options);
    return static_cast<int>(ExitCode::kOk);
  } catch (const Error& error) {
    return report(error.what(), error.exit_code());
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) return report(kOutOfMemory, ExitCode::kRuntime);
    return report(without_stack_trace(error), ExitCode::kRuntime);
  }
}

}  // namespace ladder
