// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/project.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "ladder/armour/checkpoint_folder.h"
#include "ladder/comm/run_together.h"
#include "ladder/core/error.h"
#include "ladder/io/atomic_file.h"
#include "ladder/launch/signals.h"

namespace ladder {
namespace {

constexpr const char* kCheckpointPrefix = "checkpoint_";

}  // namespace

Project::Project(const AcceleratorState& shared, const PreparedObjects& objects)
    : shared_(shared), objects_(objects), options_(shared.options.project) {
  make_folder();
}

// In the constructor, so that a folder that cannot be written is an error before the training; and
// before each checkpoint, as the folder of a running program may be removed.
void Project::make_folder() {
  const auto& folder = options_.project_dir;
  if (folder.empty()) return;
  const auto latest = checkpoints_folder() + "/latest";
  on_rank_0(shared_.group, "project_dir", [&] {
    std::error_code ignored;  // lock_run reports it
    const auto type = std::filesystem::symlink_status(latest, ignored).type();
    using enum std::filesystem::file_type;
    if (type != directory && type != regular) return;
    throw SystemError::failed("replace", latest, EEXIST,
                              fmt::format("it must be a link: mv {0} {0}.old", latest));
  });
  lock_ = lock_run(fmt::format("project_dir {}", folder), folder + "/.lock", latest, shared_.group,
                   shared_.log, std::move(lock_));
}

void Project::require_own_checkpoints() const {
  const auto folder = checkpoints_folder();
  on_rank_0(shared_.group, "project_dir", [&] {
    std::error_code ignored;
    const bool is_chosen =
        !last_checkpoint_.empty() &&
        std::filesystem::equivalent(folder_of(last_checkpoint_), folder, ignored);
    if (is_chosen) return;
    const auto own = identity_of(parts_of(objects_.state()));
    for (const auto& checkpoint : list_checkpoints(folder, kCheckpointPrefix)) {
      require_own_checkpoint(
          "project_dir " + options_.project_dir, checkpoint.path, own,
          "name another project_dir, or resume from that checkpoint by its name");
    }
  });
}

std::string Project::checkpoints_folder() const {
  if (options_.project_dir.empty()) {
    throw UsageError::missing("save_state and load_state", "a path, or project_dir",
                              "set AcceleratorOptions::project.project_dir");
  }
  return options_.project_dir + "/checkpoints";
}

// Rank 0 chooses the number: other ranks may see the folder later, or never.
std::string Project::next_checkpoint() const {
  const auto folder = checkpoints_folder();
  auto number = torch::zeros({}, torch::kInt64);
  on_rank_0(shared_.group, "save_state", [&] {
    const auto present = list_checkpoints(folder, kCheckpointPrefix);
    std::int64_t next = present.empty() ? 0 : present.back().number + 1;
    // A folder without a manifest is no checkpoint, and is not replaced.
    while (std::filesystem::exists(fmt::format("{}/{}{}", folder, kCheckpointPrefix, next))) ++next;
    number.fill_(next);
  });
  shared_.group.broadcast(number);
  return fmt::format("{}/{}{}", folder, kCheckpointPrefix, number.item<std::int64_t>());
}

std::string Project::save_state(const std::string& path, const SaveStateOptions& options) {
  if (!shared_.gradients->sync_gradients()) {
    throw UsageError::conflict("save_state",
                               "in the middle of an accumulation window, whose gradients would be "
                               "lost",
                               "call it after a step: if (accelerator.sync_gradients())");
  }
  make_folder();
  const std::string folder = path.empty() ? next_checkpoint() : path;
  save_training_state(folder, objects_.state(), shared_.group, options);
  if (path.empty() && options_.total_limit) {
    limit_checkpoints(checkpoints_folder(), kCheckpointPrefix, *options_.total_limit, {},
                      shared_.group, shared_.log);
  }
  last_checkpoint_ = folder;
  if (path.empty()) after_save()(folder);
  return folder;
}

// A checkpoint, a folder of checkpoints, or a project_dir. A run that was killed before it wrote
// `latest` may have checkpoints.
std::string Project::checkpoint_to_load(const std::string& path) const {
  namespace fs = std::filesystem;
  std::string folder = path;
  if (fs::is_directory(folder + "/checkpoints")) folder += "/checkpoints";
  const auto present = list_checkpoints(folder, kCheckpointPrefix);
  return present.empty() || fs::exists(folder + "/latest") ? folder : present.back().path;
}

std::string Project::load_state(const std::string& path) {
  std::string checkpoint;
  if (path == "auto") {
    require_own_checkpoints();
    checkpoint =
        newest_training_state(checkpoints_folder(), kCheckpointPrefix, shared_.group, shared_.log);
    if (checkpoint.empty()) return "";
  } else {
    const std::string folder = path.empty() ? checkpoints_folder() : path;
    on_rank_0(shared_.group, "load_state", [&] { checkpoint = checkpoint_to_load(folder); });
  }
  last_checkpoint_ = load_training_state(checkpoint, objects_.state(), shared_.group, shared_.log);
  has_loaded_ = true;
  return last_checkpoint_;
}

}  // namespace ladder
