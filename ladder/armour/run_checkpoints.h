// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/armour/folder_lock.h"
#include "ladder/checkpoint/checkpoint_parts.h"
#include "ladder/comm/process_group.h"
#include "ladder/core/log.h"

namespace ladder {

// The checkpoints of a run in a folder that no other run may use.

// Locks `file` on rank 0, for a run that saves checkpoints beside it; see FolderLock. Waits for at
// most 5 s for another owner, under a launcher that restarts runs for the timeout of the group.
// Throws SystemError if the file, or `written`, which the run will replace, is in a folder that is
// not writable, or cannot be replaced. A collective. Null on other ranks. `present` is returned
// unless its file was removed, after which another run may own the folder.
std::unique_ptr<const FolderLock> lock_run(const std::string& where, const std::string& file,
                                           const std::string& written, const ProcessGroup& group,
                                           const Log& log,
                                           std::unique_ptr<const FolderLock> present = nullptr);

// What tells one run from another: members of the JSON files in its checkpoints, by file.
using RunIdentity = std::vector<std::pair<std::string, nlohmann::json>>;

// The "settings" of the parts (run_settings.h), and the data of loaders. For rank 0.
RunIdentity identity_of(const CheckpointParts& parts);

// In what the run that wrote `checkpoint` is another: "--seed is 42 there, and 7 here". "" if it
// is none, has no such members, or is damaged.
std::string difference_of(const std::string& checkpoint, const RunIdentity& own);

// Throws UsageError, which begins with `where`, for a checkpoint of another run. Beside it a run
// must not save: a resume would take either, and a limit would remove those of the other.
void require_own_checkpoint(const std::string& where, const std::string& checkpoint,
                            const RunIdentity& own, const std::string& hint);

// remove_old_checkpoints() on rank 0; a checkpoint that cannot be removed is a warning. A
// collective.
void limit_checkpoints(const std::string& parent, std::string_view prefix, std::size_t total_limit,
                       const std::vector<std::string>& keep, const ProcessGroup& group,
                       const Log& log);

// The newest intact checkpoint "PREFIX<number>" in `parent`; "" if there is none. Rank 0 chooses,
// and logs the choice and each damaged checkpoint that it passes over. A collective.
std::string newest_training_state(const std::string& parent, std::string_view prefix,
                                  const ProcessGroup& group, const Log& log);

}  // namespace ladder
