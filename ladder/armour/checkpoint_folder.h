// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/armour/checkpoint_manifest.h"
#include "ladder/checkpoint/checkpoint_store.h"

namespace ladder {

// A checkpoint: a folder of files that belong together, and a manifest that names each with its
// length and its SHA-256. It is written as a whole, and every file is checked before any of it is
// used.
//
// At every moment, also after a kill or a power cut, the folder's name and the link `latest` lead
// to the complete old checkpoint or to the complete new one. One run at a time writes into a parent
// folder; any number of processes may read meanwhile. docs/formats.md, "Checkpoint folders", has
// the layout and the steps of a write. Python's counterpart: Accelerator.save_state, which writes
// the files one by one under their final names, without a list or hashes.

// Writes one checkpoint.
//
//     CheckpointWriter writer("checkpoints/checkpoint_1");
//     writer.write("model.safetensors",
//                  [&](const WriteBytes& write) { write_safetensors(model_file(*model), write); });
//     writer.commit();
//
// Several ranks can write into it, on a disk that all share: see CheckpointStore.
//
// Errors of the operating system are SystemErrors that name the operation and the path. After one,
// or without commit(), the older checkpoints are unchanged and the new files are removed. If only
// the very last steps of commit() fail, which flush the new names and replace `latest`, the new
// checkpoint is complete under its name, and `latest` still names the old one.
class CheckpointWriter {
 public:
  // Creates the hidden folder and those above it, and removes leftovers of killed runs. An existing
  // folder is replaced if it is empty or a checkpoint (of a damaged one, the manifest must still
  // contain the format's name and version), else refused: SystemError. UsageError for a path
  // without a name of its own, such as "..", or with a name that begins with '.' or is "latest".
  explicit CheckpointWriter(const std::string& path, const CheckpointOptions& options = {});
  // Removes the hidden folder unless commit() succeeded.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Writes a file, once per name. UsageError for a name that is_checkpoint_file_name() refuses.
  void write(std::string_view name, const FileContent& content);

  // Writes the manifest of the files that write() and other ranks wrote, and gives the folder its
  // name. A file of another rank that is missing here is a SystemError, one of another length a
  // DataError, as when that rank wrote to its own disk. Call it once.
  void commit(const CheckpointManifest& of_other_ranks = {});

 private:
  void require_files() const;
  void put_in_place();
  void exchange();
  bool remove_leftovers() const;

  std::string path_;
  std::string partial_;   // the hidden folder
  std::string replaced_;  // the old one meanwhile, on file systems that cannot exchange two names
  std::string latest_;    // the link; empty to leave it
  CheckpointManifest manifest_;
  bool in_place_ = false;
  bool finished_ = false;
};

// Opens a checkpoint, or the one that `latest` names if `path` is the folder above. Reads and
// hashes every file once: some seconds per gigabyte.
//
// Throws DataError (exit code 3) if there is none, if the manifest is damaged, or if a file is
// missing, a link, or of another length or content; it names the newest older checkpoint that is
// intact. Files that the manifest does not list are ignored. SystemError for a file that cannot be
// read. If a writer replaces or removes the checkpoint meanwhile, the new one is opened.
Checkpoint open_checkpoint(const std::string& path);

// The folder that `path` leads to at this moment, for open_checkpoint. It need not exist.
std::string checkpoint_at(const std::string& path);

struct NumberedCheckpoint {
  std::int64_t number = 0;
  std::string path;
};

// The checkpoints "PREFIX<number>" in a folder, by number: "checkpoint_2" before "checkpoint_10".
// These are folders with a manifest; open_checkpoint checks whether they are intact. Empty if
// there is no such folder.
std::vector<NumberedCheckpoint> list_checkpoints(const std::string& parent,
                                                 std::string_view prefix = "checkpoint_");

// The folder of that prefix with the largest number, whatever it holds; "" if there is none.
std::string newest_folder(const std::string& parent, std::string_view prefix);

// Throws SystemError for a folder of that prefix and a number which is neither a checkpoint nor
// empty: a later checkpoint of that number could not replace it.
void require_no_foreign_folders(const std::string& parent, std::string_view prefix);

// The newest intact checkpoint "PREFIX<number>" in a folder; empty if there is none. Passes over
// damaged ones and folders without a manifest, and calls `passed_over` with the error of each.
// Reads and hashes every file of the checkpoints that it looks at. One that cannot be read is a
// SystemError, as it may be whole; if there are checkpoints and none is whole, a DataError.
std::string newest_intact_checkpoint(
    const std::string& parent, std::string_view prefix,
    const std::function<void(const std::string& error)>& passed_over);

// Removes a checkpoint. After a kill it is complete or gone. Throws SystemError if the operating
// system refuses; what could not be removed is hidden then, and the next writer removes it.
void remove_checkpoint(const std::string& path);

// Removes the checkpoints with the smallest numbers until `total_limit` are left. The target of
// `latest` and the paths in `keep` always stay, and count. After a kill, each checkpoint is
// complete or gone. Throws UsageError for a limit below 1, SystemError if the operating system
// refuses; with `failed`, it is called with the error of each checkpoint that cannot be removed.
void remove_old_checkpoints(const std::string& parent, std::string_view prefix,
                            std::size_t total_limit, const std::vector<std::string>& keep = {},
                            const std::function<void(const std::string& error)>& failed = {});

// The store of programs that link durable_store.cpp. A manifest with hashes shows damage,
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
