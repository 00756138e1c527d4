// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <filesystem>
#include <system_error>

#include "ladder/accelerate/accelerator.h"
#include "ladder/checkpoint/checkpoint_folder.h"
#include "ladder/comm/run_together.h"
#include "ladder/core/error.h"
#include "ladder/io/atomic_file.h"
#include "ladder/launch/signals.h"

namespace ladder {
namespace {

constexpr const char* kCheckpointPrefix = "checkpoint_";

}  // namespace

// In the constructor, so that a folder that cannot be written is an error before the training; and
// before each checkpoint, as the folder of a running program may be removed.
void Accelerator::make_project_folder() {
  const auto& folder = options_.project.project_dir;
  if (folder.empty()) return;
  const auto latest = checkpoints_folder() + "/latest";
  on_rank_0(group_, "project_dir", [&] {
    std::error_code ignored;  // lock_run reports it
    const auto type = std::filesystem::symlink_status(latest, ignored).type();
    using enum std::filesystem::file_type;
    if (type != directory && type != regular) return;
    throw SystemError::failed("replace", latest, EEXIST,
                              fmt::format("it must be a link: mv {0} {0}.old", latest));
  });
  lock_ = lock_run(fmt::format("project_dir {}", folder), folder + "/.lock", latest, group_, log_,
                   std::move(lock_));
}

// Once all objects are registered, before the first step. A checkpoint of this folder that was
// named and loaded was chosen.
void Accelerator::require_own_checkpoints() const {
  const auto folder = checkpoints_folder();
  on_rank_0(group_, "project_dir", [&] {
    std::error_code ignored;
    const bool is_chosen =
        !last_checkpoint_.empty() &&
        std::filesystem::equivalent(folder_of(last_checkpoint_), folder, ignored);
    if (is_chosen) return;
    const auto own = identity();
    for (const auto& checkpoint : list_checkpoints(folder, kCheckpointPrefix)) {
      require_own_checkpoint(
          "project_dir " + options_.project.project_dir, checkpoint.path, own,
          "name another project_dir, or resume from that checkpoint by its name");
    }
  });
}

std::string Accelerator::checkpoints_folder() const {
  if (options_.project.project_dir.empty()) {
    throw UsageError::missing("save_state and load_state", "a path, or project_dir",
                              "set AcceleratorOptions::project.project_dir");
  }
  return options_.project.project_dir + "/checkpoints";
}

// Rank 0 chooses the number: other ranks may see the folder later, or never.
std::string Accelerator::next_checkpoint() const {
  const auto folder = checkpoints_folder();
  auto number = torch::zeros({}, torch::kInt64);
  on_rank_0(group_, "save_state", [&] {
    const auto present = list_checkpoints(folder, kCheckpointPrefix);
    std::int64_t next = present.empty() ? 0 : present.back().number + 1;
    // A folder without a manifest is no checkpoint, and is not replaced.
    while (std::filesystem::exists(fmt::format("{}/{}{}", folder, kCheckpointPrefix, next))) ++next;
    number.fill_(next);
  });
  group_.broadcast(number);
  return fmt::format("{}/{}{}", folder, kCheckpointPrefix, number.item<std::int64_t>());
}

std::string Accelerator::save_state(const std::string& path, const SaveStateOptions& options) {
  if (!sync_gradients()) {
    throw UsageError::conflict("save_state",
                               "in the middle of an accumulation window, whose gradients would be "
                               "lost",
                               "call it after a step: if (accelerator.sync_gradients())");
  }
  make_project_folder();
  const std::string folder = path.empty() ? next_checkpoint() : path;
  save_training_state(folder, state(), group_, options);
  if (path.empty() && options_.project.total_limit) {
    limit_checkpoints(checkpoints_folder(), kCheckpointPrefix, *options_.project.total_limit, {},
                      group_, log_);
  }
  last_checkpoint_ = folder;
  if (path.empty()) after_save()(folder);
  return folder;
}

// A checkpoint, a folder of checkpoints, or a project_dir. A run that was killed before it wrote
// `latest` may have checkpoints.
std::string Accelerator::checkpoint_to_load(const std::string& path) const {
  namespace fs = std::filesystem;
  std::string folder = path;
  if (fs::is_directory(folder + "/checkpoints")) folder += "/checkpoints";
  const auto present = list_checkpoints(folder, kCheckpointPrefix);
  return present.empty() || fs::exists(folder + "/latest") ? folder : present.back().path;
}

std::string Accelerator::load_state(const std::string& path) {
  std::string checkpoint;
  if (path == "auto") {
    require_own_checkpoints();
    checkpoint = newest_training_state(checkpoints_folder(), kCheckpointPrefix, group_, log_);
    if (checkpoint.empty()) return "";
  } else {
    const std::string folder = path.empty() ? checkpoints_folder() : path;
    on_rank_0(group_, "load_state", [&] { checkpoint = checkpoint_to_load(folder); });
  }
  last_checkpoint_ = load_training_state(checkpoint, state(), group_, log_);
  resumed_ = true;
  return last_checkpoint_;
}

}  // namespace ladder
