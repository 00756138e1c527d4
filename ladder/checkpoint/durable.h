// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ladder {

// Steps on a file system that survive a power cut.
//
// The operating system promises little by itself: after a rename the new name may be in memory
// alone, until the folder that holds it is synchronised. Each function here returns when its
// change is on disk, or throws a SystemError that names the operation and the path.
//
// For the files of this folder; users want AtomicFile and CheckpointWriter.

// The folder that holds `path`; "." for a bare name.
std::string folder_of(const std::string& path);

// Waits until the names in a folder are on disk. File systems that offer no such thing do it
// themselves: nothing is thrown for them.
void fsync_directory(const std::string& folder);

// Creates a folder and those above it, as `mkdir -p` does.
void create_directories_synced(const std::string& folder);

// Makes the symbolic link `path` point to `target`, whether or not it exists. Readers see the old
// target or the new one. Uses the name ".NAME.partial" beside it.
void replace_symlink(const std::string& target, const std::string& path);

// Removes a file, a link (never what it points to), or a folder with all it holds. Nothing there
// is no error. Synchronises nothing: what comes back after a power cut was not wanted anyway.
void remove_all(const std::string& path);

}  // namespace ladder
