// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/input_file.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "ladder/core/error.h"

namespace ladder {

InputFile::InputFile(const std::string& name)
    : descriptor_(memfd_create(name.c_str(), MFD_CLOEXEC)), path_(folder_.file(name)) {
  if (!descriptor_) throw SystemError::failed("memfd_create", name, errno);
  std::filesystem::create_symlink(fmt::format("/proc/self/fd/{}", descriptor_.get()), path_);
}

const std::string& InputFile::with(const Bytes& bytes) const {
  const auto size = static_cast<ssize_t>(bytes.size());
  if (ftruncate(descriptor_.get(), 0) != 0 ||
      pwrite(descriptor_.get(), bytes.data(), bytes.size(), 0) != size) {
    throw SystemError::failed("write", path_, errno);
  }
  return path_;
}

}  // namespace ladder
