// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ladder/checkpoint/checkpoint_store.h"

namespace ladder {

// The store of programs that link it: checkpoint_folder.h. A manifest with hashes shows damage,
// each file and name is flushed to the disk, leftovers of killed runs are removed, the link
// `latest` is kept, and a claim locks ".NAME.lock" beside the folder.
class DurableStore : public CheckpointStore {
 public:
  std::unique_ptr<CheckpointDraft> begin(const std::string& path,
                                         const CheckpointOptions& options) const override;
  std::string folder_at(const std::string& path) const override;
  Checkpoint open(const std::string& path) const override;
  std::shared_ptr<const void> claim(const std::string& where, const std::string& path,
                                    const std::vector<CheckpointPart>& parts,
                                    const ProcessGroup& group, const Log& log) const override;
};

}  // namespace ladder
