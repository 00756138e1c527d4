// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/io/atomic_file.h"

namespace ladder {

struct CheckpointPart;
class Log;
class ProcessGroup;

// The lengths and hashes of the files of a checkpoint, by name; opened by a plain store, without
// hashes.
using CheckpointManifest = std::map<std::string, FileDigest, std::less<>>;

// A checkpoint whose files were complete when it was opened.
class Checkpoint {
 public:
  Checkpoint(std::string path, CheckpointManifest manifest)
      : path_(std::move(path)), manifest_(std::move(manifest)) {}

  // Its folder, `latest` followed: "checkpoints/checkpoint_1". Stays valid until this checkpoint is
  // replaced or removed; a newer one beside it changes nothing.
  const std::string& path() const { return path_; }

  // The path of one file. DataError for a name that the manifest does not list.
  std::string file(std::string_view name) const;
  bool contains(std::string_view name) const { return manifest_.contains(name); }
  const CheckpointManifest& manifest() const { return manifest_; }

 private:
  std::string path_;
  CheckpointManifest manifest_;
};

struct CheckpointOptions {
  bool latest = true;  // let the link `latest` beside the folder point to it, in a durable store
};

// A checkpoint that rank 0 has begun. Its files are removed unless commit() succeeded.
class CheckpointDraft {
 public:
  virtual ~CheckpointDraft() = default;
  // Gives the folder its name, with the files that the ranks have written. Call it once.
  virtual void commit(const CheckpointManifest& files) = 0;
};

// How a checkpoint gets into its folder. The ranks write their files into a hidden folder beside
// it, which one rename then publishes:
//
//     std::unique_ptr<CheckpointDraft> draft;
//     if (group.rank() == 0) draft = checkpoint_store().begin(path, options);
//     group.barrier();
//     const FileDigest own = write_checkpoint_file(path, "rng_1.safetensors", content);
//     ...  // rank 0 receives the digests
//     if (group.rank() == 0) draft->commit(digests);
//
// A kill leaves the old checkpoint or the new one. This store believes what it finds in a folder;
// DurableStore (checkpoint_folder.h), which a program uses that links it, also finds damage,
// survives a power cut and keeps other runs out. Errors of the operating system are SystemErrors.
class CheckpointStore {
 public:
  virtual ~CheckpointStore() = default;

  // Refuses (SystemError), now or in commit(), to replace what is not a checkpoint. UsageError as
  // require_checkpoint_name.
  virtual std::unique_ptr<CheckpointDraft> begin(const std::string& path,
                                                 const CheckpointOptions& options) const;
  // The folder that `path` leads to at this moment. It need not exist.
  virtual std::string folder_at(const std::string& path) const;
  // Throws DataError if there is no checkpoint.
  virtual Checkpoint open(const std::string& path) const;

  // Keeps other runs out of `path` while the result lives, and refuses a checkpoint there of
  // another run than one with these parts: UsageErrors that begin with `where`. A collective. Here:
  // nothing.
  virtual std::shared_ptr<const void> claim(const std::string& /*where*/,
                                            const std::string& /*path*/,
                                            const std::vector<CheckpointPart>& /*parts*/,
                                            const ProcessGroup& /*group*/,
                                            const Log& /*log*/) const {
    return nullptr;
  }
};

// The store of this process.
const CheckpointStore& checkpoint_store();
// Makes `store`, which must outlive the process, that store. Before main(), or before the first
// checkpoint. Returns true.
bool use_checkpoint_store(const CheckpointStore& store);

// Whether there is something at `path` to open or to refuse; an empty folder is nothing.
bool checkpoint_exists(const std::string& path);

// Writes a file of checkpoint `path`, which rank 0 has begun, and flushes it to the disk.
// UsageError for a name that is_checkpoint_file_name() refuses.
FileDigest write_checkpoint_file(const std::string& path, std::string_view name,
                                 const FileContent& content);

// Whether a file of a checkpoint may have this name: 1 to 255 letters, digits, '.', '_' or '-', not
// beginning with '.' or '-', and not manifest.json.
bool is_checkpoint_file_name(std::string_view name);
void require_checkpoint_file_name(std::string_view name);  // UsageError

// `path` without slashes at its end. Throws UsageError naming `where` unless it ends with a name
// that a checkpoint can have; "." is none. `example`: a path for the hint.
std::string require_checkpoint_name(std::string_view where, const std::string& path,
                                    std::string_view example);

// "runs/.a.partial" of "runs/a" and ".partial".
std::string hidden_sibling(const std::string& path, std::string_view suffix);
// The folder of the files of checkpoint `path` until it is committed.
std::string partial_checkpoint(const std::string& path);
// The old checkpoint, between two renames.
std::string replaced_checkpoint(const std::string& path);

}  // namespace ladder
