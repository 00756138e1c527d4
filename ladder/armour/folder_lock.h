// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "ladder/core/unique_fd.h"

namespace ladder {

// Keeps a second run out of a folder, for its lifetime.
//
// Two runs that write checkpoints into one folder remove each other's unfinished files, and a
// resume takes the checkpoint of either. So rank 0 of a run locks a file, such as out/.lock, which
// holds its process id and its machine. The kernel releases the lock when the process ends, in
// whatever way: no lock is ever stale, whatever the file says. The destructor removes the file; one
// that a killed run left is taken over.
//
// On network file systems the lock also holds between machines, if the server has locks (NFS has).
// Where a file system has none, nothing is locked, and is_held() is false. Processes that this one
// forks hold the lock too, until they end or exec.
class FolderLock {
 public:
  // `file` is created if it does not exist; its folder must exist. If another process holds the
  // lock, waits for at most `wait`: a run that is just ending, as when a launcher restarts it. Then
  // throws UsageError, which begins with `where` and names the owner. SystemError if the file
  // cannot be opened.
  FolderLock(std::string_view where, const std::string& file, std::chrono::milliseconds wait);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  bool is_held() const { return static_cast<bool>(file_); }
  // Whether the locked file still has its name: false after `rm -r out`.
  bool is_in_place() const;

 private:
  bool try_lock(const std::string& path);

  UniqueFd folder_;
  std::string name_;
  UniqueFd file_;
};

}  // namespace ladder
