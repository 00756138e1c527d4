// SPDX-License-Identifier: Apache-2.0
#include "ladder/train/step_trace.h"

#include <ATen/Context.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <utility>

#include "ladder/core/error.h"

namespace ladder {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

}  // namespace

StepTrace::StepTrace(std::string path) : path_(std::move(path)) {}

StepTrace::~StepTrace() {
  if (running_) profiler::disableProfiler();
}

void StepTrace::start() {
  // Without a GPU, Kineto logs an error that has no meaning.
  ::setenv("KINETO_LOG_LEVEL", "5", /*replace=*/0);
  const ProfilerConfig config(ProfilerState::KINETO);
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (at::hasCUDA()) activities.insert(ActivityType::CUDA);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  running_ = true;
}

void StepTrace::step_done(std::int64_t step) {
  if (path_.empty()) return;
  if (step == kFirstStep - 1) start();
  if (step == kLastStep) finish();
}

void StepTrace::finish() {
  if (!running_) return;
  running_ = false;
  profiler::disableProfiler()->save(path_);
  if (!std::filesystem::exists(path_)) throw SystemError::write_failed(path_, errno);
}

std::string StepTrace::path_of_rank(const std::string& path, int rank) {
  if (rank == 0 || path.empty()) return path;
  const std::filesystem::path file(path);
  const auto name =
      fmt::format("{}.rank{}{}", file.stem().string(), rank, file.extension().string());
  return (file.parent_path() / name).string();
}

}  // namespace ladder
