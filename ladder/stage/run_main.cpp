// SPDX-License-Identifier: Apache-2.0
#include "ladder/stage/run_main.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

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

// Errors of LibTorch carry a stack trace of many lines behind the message.
std::string without_stack_trace(const std::exception& error) {
  const std::string text = error.what();
  if (environment_variable("TORCH_SHOW_CPP_STACKTRACES")) return text;
  const auto end = text.find('\n');
  if (end == std::string::npos) return text;
  return text.substr(0, end) + "; hint: TORCH_SHOW_CPP_STACKTRACES=1 shows where it happened";
}

bool is_gpu_device(const std::string& name) {
  constexpr std::string_view kPrefix = "nvidia";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         std::isdigit(static_cast<unsigned char>(name[kPrefix.size()])) != 0;
}

// Counted without CUDA, whose first call would forbid a later fork.
bool machine_has_gpu() {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const auto name = entry.path().filename().string();
    if (is_gpu_device(name) || name == "dxg") return true;
  }
  return false;
}

void show_only(const std::vector<std::string>& gpus) {
  if (gpus.empty()) return;
  const std::string list = fmt::format("{}", fmt::join(gpus, ","));
  if (!machine_has_gpu()) {
    throw UsageError::conflict("--gpu " + list, "this machine has no GPU",
                               "leave the flag out, or use --device cpu");
  }
  ::setenv("CUDA_VISIBLE_DEVICES", list.c_str(), /*replace=*/1);
}

}  // namespace

int run_main(int argc, char** argv, const std::function<void(const RunOptions&)>& run) {
  try {
    const auto command_line = parse_command_line(argc, argv);
    if (!command_line.options) {
      fmt::print("{}", command_line.text);
      return static_cast<int>(ExitCode::kOk);
    }
    show_only(command_line.options->gpu);
    run(*command_line.options);
    return static_cast<int>(ExitCode::kOk);
  } catch (const Error& error) {
    return report(error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return report("out of memory; hint: lower --batch-size", ExitCode::kRuntime);
  } catch (const std::exception& error) {
    return report(without_stack_trace(error), ExitCode::kRuntime);
  }
}

}  // namespace ladder
