// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "ladder/accelerate/accelerator_state.h"
#include "ladder/accelerate/prepare.h"
#include "ladder/armour/run_checkpoints.h"
#include "ladder/checkpoint/training_state.h"

namespace ladder {

// The checkpoints of an Accelerator, and the folder of its run, project_dir (ProjectConfiguration):
//
//     .lock                      of one run at a time (FolderLock), as long as this object lives
//     checkpoints/checkpoint_0   and so on; those beyond total_limit are removed
//     checkpoints/latest         a link to the last
//
// Without a project_dir, each save and load names a folder.
class Project {
 public:
  // Uses both as long as it lives. Throws UsageError for a project_dir that another run uses, and
  // SystemError for one in which this run could not save. A collective.
  Project(const AcceleratorState& shared, const PreparedObjects& objects);

  // The folder for the trackers of such a run.
  static std::string logging_dir(const ProjectConfiguration& options) {
    return options.logging_dir.empty() ? options.project_dir : options.logging_dir;
  }

  bool has_folder() const { return !options_.project_dir.empty(); }

  // See Accelerator::save_state.
  std::string save_state(const std::string& path, const SaveStateOptions& options);

  // See Accelerator::load_state. With the same threads, loader mode and number of processes, the
  // run then equals an uninterrupted one (docs/reference/5-accelerator.md). With another number of
  // processes the random generators are not restored, with a log line, and a position in the middle
  // of an epoch is accepted in global mode only.
  std::string load_state(const std::string& path);

  // The last checkpoint that this object has written or loaded; empty if none.
  const std::string& last_checkpoint() const { return last_checkpoint_; }
  bool has_loaded() const { return has_loaded_; }

  // Throws UsageError for a checkpoint of another run in project_dir, unless one of this folder was
  // named and loaded, and so chosen. Once all objects are registered. A collective.
  void require_own_checkpoints() const;

 private:
  void make_folder();
  std::string checkpoints_folder() const;
  std::string checkpoint_to_load(const std::string& path) const;
  std::string next_checkpoint() const;

  const AcceleratorState& shared_;
  const PreparedObjects& objects_;
  const ProjectConfiguration& options_;
  std::string last_checkpoint_;
  bool has_loaded_ = false;
  std::unique_ptr<const FolderLock> lock_;  // of project_dir
};

}  // namespace ladder
