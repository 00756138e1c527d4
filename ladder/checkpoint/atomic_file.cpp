// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "ladder/checkpoint/durable.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNameAFile = "name a file, not a folder or a device";

bool is_folder(const std::string& path) {
  std::error_code ignored;  // what cannot be asked for is no folder to write in
  return fs::is_directory(path, ignored);
}

// A device, a pipe or a socket must never be replaced by a file of its name.
bool is_something_else(const std::string& path) {
  std::error_code ignored;
  const auto status = fs::status(path, ignored);
  return fs::exists(status) && !fs::is_regular_file(status);
}

// The file behind a link: that is what is replaced, not the link.
std::string behind_links(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_symlink(path, ignored)) return path;
  return fs::weakly_canonical(path, ignored).string();
}

int create_new(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

}  // namespace

AtomicFile::AtomicFile(std::string path)
    : path_(behind_links(path)), temporary_path_(fmt::format("{}.tmp.{}", path_, ::getpid())) {
  if (is_something_else(path_)) throw SystemError::failed("replace", path_, EINVAL, kNameAFile);
  descriptor_ = create_new(temporary_path_);
  if (descriptor_ < 0 && errno == EEXIST && ::unlink(temporary_path_.c_str()) == 0) {
    descriptor_ = create_new(temporary_path_);
  }
  if (descriptor_ < 0) throw SystemError::failed("create", temporary_path_, errno);
}

AtomicFile::~AtomicFile() {
  close();
  if (!committed_) ::unlink(temporary_path_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw SystemError::write_failed(temporary_path_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) throw SystemError::failed("fsync", temporary_path_, errno);
  close();
  if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    throw SystemError::failed("rename", path_, errno);
  }
  committed_ = true;
  fsync_directory(folder_of(path_));
}

void AtomicFile::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void write_text_file(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

void require_writable_folder(std::string_view flag, const std::string& path) {
  const std::string folder = folder_of(path);
  std::string hint;
  if (path.empty() || is_something_else(path)) {
    hint = kNameAFile;
  } else if (!is_folder(folder)) {
    hint = fmt::format("create the folder first: mkdir -p {}", folder);
  } else if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    hint = fmt::format("you may not write in {}: name another folder", folder);
  } else {
    return;
  }
  throw UsageError::malformed(flag, "a file in a folder that can be written", path, hint);
}

}  // namespace ladder
