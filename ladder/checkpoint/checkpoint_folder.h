// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/checkpoint/checkpoint_manifest.h"

namespace ladder {

// A checkpoint: a folder of files that belong together, written whole or not at all and
// checked whole before anything of it is used.
//
//     checkpoints/
//       checkpoint_0/    model.safetensors, optimizer.safetensors, ..., manifest.json
//       checkpoint_1/
//       latest -> checkpoint_1
//
// To resume from the weights of one moment and the optimizer of another is worse than not to
// resume: it trains on, and nobody notices. So the files get their place in one step, the rename
// of the folder, and the manifest names each with its length and its SHA-256.
//
// At every moment, also after a kill or a power cut, the folder's name and the link `latest` lead
// to the old checkpoint, whole, or to the new one, whole. What a killed run leaves lies under
// hidden names beside them, ".checkpoint_1.partial" and the like, and goes with the next one that
// is written. Only where a file system cannot exchange two names, as NFS, is a checkpoint that is
// replaced without its name for the moment between two renames; open_checkpoint finds it even so.
//
// One run at a time writes into a parent folder; any number of processes may read meanwhile.
// The layout is in docs/formats.md. Python's counterpart: Accelerator.save_state writes the files
// to their final names one by one, without a list or a hash.

struct CheckpointOptions {
  bool latest = true;  // let the link `latest` beside the folder point to it
};

// Writes one checkpoint. Several ranks can write into it, which takes two barriers:
//
//     std::optional<CheckpointWriter> writer;
//     if (group.rank() == 0) writer.emplace("checkpoints/checkpoint_1");
//     group.barrier();
//     save_safetensors(partial_checkpoint("checkpoints/checkpoint_1") + "/rng_0.safetensors", rng);
//     group.barrier();
//     if (group.rank() == 0) writer->commit({"rng_0.safetensors", "rng_1.safetensors"});
//
// All errors of the machine are SystemErrors that name the operation and the path. After one, or
// without commit(), what was there before is untouched and the new files are removed. Should only
// the very last steps of commit() fail, to make the new names durable and to swap `latest`, then
// the new checkpoint is in place, whole, and `latest` still names the old one.
class CheckpointWriter {
 public:
  // Creates the hidden folder, and those above it, and removes what killed runs left of
  // checkpoints with the same name or the same name but for the number.
  //
  // A folder in the way is replaced if it is empty or a checkpoint; of a damaged one only the
  // format's name must still stand in the manifest. Anything else is refused (SystemError), so that
  // a mistyped name costs no folder of yours. UsageError for a path without a name of its own, such
  // as "..", or with a name that begins with '.' or is "latest".
  explicit CheckpointWriter(const std::string& path, const CheckpointOptions& options = {});
  // Removes the hidden folder unless commit() succeeded.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Where a file of this name is to be written. Write it in any way; commit() makes it durable.
  std::string file(std::string_view name) const;

  // Hashes the files, waits until they are on disk, writes the manifest, and gives the folder its
  // name. The checkpoint holds `names` and nothing else: one that is missing is a SystemError, as
  // when a rank on another machine wrote to its own disk. UsageError for a name that
  // is_checkpoint_file_name() refuses. Call it once, when every rank has closed its files.
  void commit(const std::vector<std::string>& names);

 private:
  CheckpointManifest synced_manifest(const std::vector<std::string>& names) const;
  void put_in_place();
  void exchange();
  void exchange_in_two_steps();
  bool remove_leftovers() const;

  std::string path_;
  std::string partial_;   // the hidden folder
  std::string replaced_;  // where the old one waits, on file systems that cannot exchange two names
  std::string latest_;    // the link; empty if it is not to be swapped
  bool in_place_ = false;
  bool finished_ = false;
};

// Where the files of the checkpoint `path` are written until it is committed: for the ranks that
// have no writer.
std::string partial_checkpoint(const std::string& path);

// A checkpoint of which every file was there and unchanged when it was opened.
class Checkpoint {
 public:
  // Its folder, `latest` followed: "checkpoints/checkpoint_1". Stays valid until this checkpoint is
  // replaced or removed; a newer one beside it changes nothing.
  const std::string& path() const { return path_; }

  // The path of one file. DataError for a name that the manifest does not list, whether or not
  // there is such a file.
  std::string file(std::string_view name) const;
  bool contains(std::string_view name) const { return manifest_.contains(name); }
  const CheckpointManifest& manifest() const { return manifest_; }

 private:
  friend Checkpoint open_checkpoint(const std::string& path);
  Checkpoint(std::string path, CheckpointManifest manifest);

  std::string path_;
  CheckpointManifest manifest_;
};

// Opens a checkpoint, or the one that `latest` names if `path` is the folder above. Reads every
// file once, which takes seconds a gigabyte.
//
// Throws DataError (exit code 3) if there is none, if the manifest is not of its form, or if a
// file is missing, a link, or of another length or content. The message names the file and what
// was expected, and the hint the newest older checkpoint that is whole, if there is one. Files
// that the manifest does not list are not looked at: nobody gets their path.
//
// A writer that replaces or removes the checkpoint meanwhile does no harm: the new one is opened.
Checkpoint open_checkpoint(const std::string& path);

// The value in a JSON file of a checkpoint. DataError if it is longer than 64 MiB, which is days of
// logged steps, and for all that parse_saved_json refuses.
nlohmann::json read_saved_json(const std::string& path);

struct NumberedCheckpoint {
  std::int64_t number = 0;
  std::string path;
};

// The checkpoints "PREFIX<number>" in a folder, by number: "checkpoint_2" before "checkpoint_10".
// Listed are folders with a manifest; whether they are still whole, open_checkpoint tells. Empty
// if there is no such folder.
std::vector<NumberedCheckpoint> list_checkpoints(const std::string& parent,
                                                 std::string_view prefix = "checkpoint_");

// Removes the checkpoints with the smallest numbers until `total_limit` are left. The one that
// `latest` names and those of `keep`, by their paths, always stay, and count. A kill in the middle
// leaves each of them whole or gone. Throws UsageError for a limit below 1, SystemError if the
// machine refuses; what could not be removed is hidden by then, and goes with the next checkpoint
// that is written.
void remove_old_checkpoints(const std::string& parent, std::string_view prefix,
                            std::size_t total_limit, const std::vector<std::string>& keep = {});

}  // namespace ladder
