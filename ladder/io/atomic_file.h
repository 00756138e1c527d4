// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/core/unique_fd.h"

namespace ladder {

// Appends bytes to a file.
using WriteBytes = std::function<void(std::span<const std::byte>)>;
// The content of a file: passes its bytes to `write`, in any number of pieces.
using FileContent = std::function<void(const WriteBytes& write)>;

// A file that is replaced as a whole.
//
// The bytes go to a temporary file in the same folder, which is flushed to the disk and renamed.
// At every moment, also after a crash or a power cut, a reader of `path` finds the complete old
// content or the complete new one.
//
// All errors are SystemErrors that name the operation and the path. After an error, or without
// commit(), the old content is unchanged and the temporary file is removed; only a killed process
// leaves one, `<path>.tmp.<process id>`. Of a symbolic link, the file behind it is replaced.
// Anything that is not a regular file is refused. Use one object per path at a time.
//
//     AtomicFile file("model.safetensors");
//     file.write(header);
//     file.write(data);
//     file.commit();
class AtomicFile {
 public:
  // Creates the temporary file.
  explicit AtomicFile(std::string path);
  // Removes the temporary file unless commit() succeeded.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends bytes.
  void write(std::span<const std::byte> bytes);

  // Flushes the bytes to the disk, renames the file, and flushes the folder. Call it once, last.
  // If only the last step fails, the new content is visible but may not survive a power cut.
  void commit();

 private:
  std::string path_;
  std::string temporary_path_;
  UniqueFd descriptor_;
  bool committed_ = false;
};

// Length and hash of a file.
struct FileDigest {
  std::uint64_t bytes = 0;
  std::string sha256;  // 64 lower-case hexadecimal characters

  bool operator==(const FileDigest&) const = default;
};

// Creates the file `path`, which must not exist, writes `content`, and flushes it to the disk: one
// pass over the bytes, which are hashed on the way. Its name is on disk once its folder is flushed
// (fsync_directory). Throws SystemError; then an incomplete file is left.
FileDigest write_new_file(const std::string& path, const FileContent& content);

// Writes a text through an AtomicFile.
void write_text_file(const std::string& path, std::string_view text);

// Whether a folder, a device, a pipe or a socket is there, which no file must replace.
bool is_something_else(const std::string& path);

// The file that a link leads to, whether it exists or not; other paths unchanged. To write to a
// link replaces or creates that file; the link stays.
std::string behind_links(std::string path);

// The errno of a later rename to `path`, or of its removal; 0 if nothing is in their way. Changes
// nothing. Of a folder that is not writable, a file with the attribute `immutable`, or one of
// another user in a sticky folder such as /tmp.
int error_of_replacing(const std::string& path);

// Checks that a file can be created or replaced at `path`, and creates nothing. Call it before a
// training, not after it. Throws UsageError (exit code 2), which begins with `where`, if the folder
// does not exist or is not writable, if the file cannot be replaced, if the name has more than 240
// bytes, if `path` is a folder, a device or a pipe, or if fewer than `bytes` are free there (in
// /proc and /sys: none).
void require_writable_folder(std::string_view where, const std::string& path,
                             std::int64_t bytes = 1);

// Steps on a file system that survive a power cut. A new name may be in memory alone until its
// folder is flushed: each function returns when its change is on disk, or throws a SystemError that
// names the operation and the path.

// The folder that holds `path`; "." for a bare name.
std::string folder_of(const std::string& path);

// "runs/a" of "runs/a/".
std::string without_slash(std::string path);

// The names in a folder, in any order.
std::vector<std::string> names_in(const std::string& folder);

void rename_or_throw(const std::string& from, const std::string& to);

// Waits until the names in a folder are on disk. Does nothing on file systems without this call.
void fsync_directory(const std::string& folder);

// Creates a folder and those above it, like `mkdir -p`.
void create_directories_synced(const std::string& folder);

// Makes the symbolic link `path` point to `target`, whether or not it exists. Readers see the old
// target or the new one. Uses the name ".NAME.partial" in the same folder.
void replace_symlink(const std::string& target, const std::string& path);

// Removes a file, a link (not its target), or a folder with its content. No error if `path` does
// not exist. Flushes nothing: a leftover that a power cut restores does no harm.
void remove_all(const std::string& path);

}  // namespace ladder
