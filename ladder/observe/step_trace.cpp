// SPDX-License-Identifier: Apache-2.0
#include "ladder/observe/step_trace.h"

#include <ATen/Context.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/io/atomic_file.h"
#include "ladder/io/regular_file.h"

namespace ladder {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

constexpr const char* kBeforeRename = ".tmp";  // Kineto writes PATH.tmp, and renames it

// Kineto reports no failed write. What it writes ends with the bracket of the first one.
bool is_complete(const std::string& path) {
  const auto file = open_regular_file(path);
  std::string end(std::min<std::uint64_t>(file.bytes, 8), '\0');
  if (!file.problem.empty() || end.empty()) return false;
  const bool is_read =
      read_at(file, file.bytes - end.size(), std::as_writable_bytes(std::span(end))) == 0;
  const auto last = end.find_last_not_of(" \n");
  return is_read && last != end.npos && end[last] == '}';
}

}  // namespace

StepTrace::StepTrace(std::string path, int rank) : path_(std::move(path)), rank_(rank) {
  if (path_.empty()) return;
  const auto is_control = [](unsigned char byte) { return byte < 0x20; };
  if (std::ranges::any_of(path_, is_control)) {
    throw UsageError::malformed("trace", "a file name without control characters", path_,
                                "Kineto drops them: name another file");
  }
  for (const auto& written : {path_, path_ + kBeforeRename}) {
    require_writable_folder("trace", written);
  }
  std::error_code ignored;
  const auto before = path_ + kBeforeRename;
  if (!std::filesystem::exists(std::filesystem::symlink_status(before, ignored))) return;
  throw UsageError::conflict(before, "Kineto would write over it", "name another trace");
}

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
  has_recorded_ = true;
}

Verdict StepTrace::step(const StepEvent& event) {
  if (event.updated) step_done(event.step);
  return {};
}

Verdict StepTrace::end() {
  finish();
  if (!path_.empty() && !has_recorded_) {
    Log({.rank = rank_})
        .warn(fmt::format("trace: nothing was recorded: it begins with step {}", kFirstStep));
  }
  return {};
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
  if (is_complete(path_)) return;
  for (const auto& part : {path_, path_ + kBeforeRename}) remove_all(part);
  throw SystemError::failed("write", path_, EIO,
                            "is its disk full, or a limit set? df -h; ulimit -f");
}

std::string StepTrace::path_of_rank(const std::string& path, int rank) {
  if (rank == 0 || path.empty()) return path;
  const std::filesystem::path file(path);
  const auto name =
      fmt::format("{}.rank{}{}", file.stem().string(), rank, file.extension().string());
  return (file.parent_path() / name).string();
}

}  // namespace ladder
