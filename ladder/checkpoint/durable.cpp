// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/durable.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "ladder/core/descriptor.h"
#include "ladder/core/error.h"

namespace ladder {

namespace fs = std::filesystem;

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

void sync_folder(const std::string& folder) {
  const Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor) throw SystemError::failed("open", folder, errno);
  const int error = ::fsync(descriptor.get()) == 0 ? 0 : errno;
  const bool not_offered = error == EINVAL;  // some file systems sync no folders
  if (error != 0 && !not_offered) throw SystemError::failed("fsync", folder, error);
}

void make_folders(const std::string& folder) {
  std::error_code ignored;  // what cannot be asked for fails below, with a better message
  if (fs::is_directory(folder, ignored)) return;
  const std::string above = folder_of(folder);
  if (above != folder) make_folders(above);
  if (::mkdir(folder.c_str(), 0777) != 0) {
    const int error = errno;  // another process may have been faster
    if (!fs::is_directory(folder, ignored)) throw SystemError::failed("mkdir", folder, error);
  }
  sync_folder(above);
}

void swap_link(const std::string& target, const std::string& path) {
  const std::string folder = folder_of(path);
  const std::string partial = folder + "/." + fs::path(path).filename().string() + ".partial";
  remove_tree(partial);
  if (::symlink(target.c_str(), partial.c_str()) != 0) {
    throw SystemError::failed("symlink", partial, errno);
  }
  if (std::rename(partial.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(partial.c_str());
    throw SystemError::failed("rename", path, error);
  }
  sync_folder(folder);
}

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw SystemError::failed("remove", path, error.value());
}

}  // namespace ladder
