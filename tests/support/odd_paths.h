// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "ladder/core/unique_fd.h"

namespace ladder {

// Paths that are no files. Each function creates one and returns `path`.

inline std::string make_pipe(const std::string& path) {
  if (::mkfifo(path.c_str(), 0600) != 0) throw std::runtime_error("mkfifo failed: " + path);
  return path;
}

inline std::string make_socket(const std::string& path) {
  sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof(name.sun_path)) throw std::runtime_error("too long: " + path);
  std::copy(path.begin(), path.end(), name.sun_path);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  const auto* const address = reinterpret_cast<const sockaddr*>(&name);
  if (::bind(socket.get(), address, sizeof(name)) != 0) throw std::runtime_error("bind failed");
  return path;
}

inline std::string make_link(const std::string& path, const std::string& target) {
  std::filesystem::create_symlink(target, path);
  return path;
}

}  // namespace ladder
