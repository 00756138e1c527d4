// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "ladder/core/error.h"
#include "ladder/core/unique_fd.h"
#include "tests/support/sample_files.h"
#include "tests/support/temporary_folder.h"

namespace ladder {

// A file in memory, for readers that take a path.
class InputFile {
 public:
  // `name` is the path's last part.
  explicit InputFile(const std::string& name)
      : descriptor_(memfd_create(name.c_str(), MFD_CLOEXEC)), path_(folder_.file(name)) {
    if (!descriptor_) throw SystemError::failed("memfd_create", name, errno);
    std::filesystem::create_symlink(fmt::format("/proc/self/fd/{}", descriptor_.get()), path_);
  }

  // Returns the path of a file that holds these bytes.
  const std::string& with(const Bytes& bytes) const {
    const auto size = static_cast<ssize_t>(bytes.size());
    if (ftruncate(descriptor_.get(), 0) != 0 ||
        pwrite(descriptor_.get(), bytes.data(), bytes.size(), 0) != size) {
      throw SystemError::failed("write", path_, errno);
    }
    return path_;
  }

 private:
  UniqueFd descriptor_;
  TemporaryFolder folder_;
  std::string path_;  // a link to the memory
};

}  // namespace ladder
