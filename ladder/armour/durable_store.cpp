// SPDX-License-Identifier: Apache-2.0

#include <fmt/format.h>

#include <filesystem>

#include "ladder/armour/checkpoint_folder.h"
#include "ladder/armour/run_checkpoints.h"
#include "ladder/comm/run_together.h"

namespace ladder {
namespace {

class DurableDraft : public CheckpointDraft {
 public:
  DurableDraft(const std::string& path, const CheckpointOptions& options)
      : writer_(path, options) {}
  void commit(const CheckpointManifest& files) override { writer_.commit(files); }

 private:
  CheckpointWriter writer_;
};

// "runs/.snapshot.lock" for "runs/snapshot/".
std::string lock_beside(const std::string& path) {
  const std::filesystem::path folder(without_slash(path));
  return folder.parent_path() / fmt::format(".{}.lock", folder.filename().string());
}

}  // namespace

std::unique_ptr<CheckpointDraft> DurableStore::begin(const std::string& path,
                                                     const CheckpointOptions& options) const {
  return std::make_unique<DurableDraft>(path, options);
}

std::string DurableStore::folder_at(const std::string& path) const { return checkpoint_at(path); }

Checkpoint DurableStore::open(const std::string& path) const { return open_checkpoint(path); }

std::shared_ptr<const void> DurableStore::claim(const std::string& where, const std::string& path,
                                                const CheckpointParts& parts,
                                                const ProcessGroup& group, const Log& log) const {
  std::shared_ptr<const void> lock = lock_run(where, lock_beside(path), path, group, log);
  on_rank_0(group, where, [&] {
    require_own_checkpoint(where, checkpoint_at(path), identity_of(parts),
                           "name another folder, or start over: rm -r " + path);
  });
  return lock;
}

extern "C" const bool ladder_durable_store;
const bool ladder_durable_store = [] {
  static const DurableStore store;
  return use_checkpoint_store(store);
}();

}  // namespace ladder
