// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/durable.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "ladder/core/error.h"
#include "ladder/core/unique_fd.h"

namespace ladder {

namespace fs = std::filesystem;

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

void fsync_directory(const std::string& folder) {
  const UniqueFd descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor) throw SystemError::failed("open", folder, errno);
  const int error = ::fsync(descriptor.get()) == 0 ? 0 : errno;
  const bool not_offered = error == EINVAL;  // some file systems sync no folders
  if (error != 0 && !not_offered) throw SystemError::failed("fsync", folder, error);
}

void create_directories_synced(const std::string& folder) {
  std::error_code ignored;  // what cannot be asked for fails below, with a better message
  if (fs::is_directory(folder, ignored)) return;
  const std::string above = folder_of(folder);
  if (above != folder) create_directories_synced(above);
  if (::mkdir(folder.c_str(), 0777) != 0) {
    const int error = errno;  // another process may have been faster
    if (!fs::is_directory(folder, ignored)) throw SystemError::failed("mkdir", folder, error);
  }
  fsync_directory(above);
}

void replace_symlink(const std::string& target, const std::string& path) {
  const std::string folder = folder_of(path);
  const std::string partial = folder + "/." + fs::path(path).filename().string() + ".partial";
  remove_all(partial);
  if (::symlink(target.c_str(), partial.c_str()) != 0) {
    throw SystemError::failed("symlink", partial, errno);
  }
  if (std::rename(partial.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(partial.c_str());
    throw SystemError::failed("rename", path, error);
  }
  fsync_directory(folder);
}

void remove_all(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw SystemError::failed("remove", path, error.value());
}

}  // namespace ladder
