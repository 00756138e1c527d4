// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include <string>

#include "ladder/core/unique_fd.h"

namespace ladder {

// Keeps a file or folder from being changed, replaced or removed, for its lifetime, as `chattr +i`.
// false where that is not possible: for another user than root, and on some file systems.
class Immutable {
 public:
  explicit Immutable(const std::string& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    is_set_ = set(true);
  }
  ~Immutable() { set(false); }
  Immutable(const Immutable&) = delete;
  Immutable& operator=(const Immutable&) = delete;

  explicit operator bool() const { return is_set_; }

 private:
  bool set(bool immutable) const {
    int flags = 0;
    if (::ioctl(file_.get(), FS_IOC_GETFLAGS, &flags) != 0) return false;
    flags = immutable ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
    return ::ioctl(file_.get(), FS_IOC_SETFLAGS, &flags) == 0;
  }

  UniqueFd file_;
  bool is_set_ = false;
};

}  // namespace ladder
