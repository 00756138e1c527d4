// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "ladder/core/error.h"
#include "ladder/core/system_limits.h"
#include "ladder/io/sha256.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestName = 240;  // of 255, for what a temporary name adds
constexpr const char* kNameAFile = "name a file, not a folder or a device";

UniqueFd create_new(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
}

constexpr std::size_t kWrittenAtOnce = std::size_t{1}
                                       << 20;  // stays in the cache while it is hashed

void write_piece(const UniqueFd& file, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw SystemError::failed("write", path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void flush(const UniqueFd& file, const std::string& path) {
  if (::fsync(file.get()) != 0) throw SystemError::failed("fsync", path, errno);
}

}  // namespace

AtomicFile::AtomicFile(std::string path)
    : path_(behind_links(path)), temporary_path_(fmt::format("{}.tmp.{}", path_, ::getpid())) {
  if (is_something_else(path_)) throw SystemError::failed("replace", path_, EINVAL, kNameAFile);
  descriptor_ = create_new(temporary_path_);
  if (!descriptor_ && errno == EEXIST && ::unlink(temporary_path_.c_str()) == 0) {
    descriptor_ = create_new(temporary_path_);
  }
  if (!descriptor_) throw SystemError::failed("create", temporary_path_, errno);
}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(temporary_path_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), kWrittenAtOnce))) {
    write_piece(descriptor_, bytes.first(std::min(bytes.size(), kWrittenAtOnce)), temporary_path_);
  }
}

void AtomicFile::commit() {
  flush(descriptor_, temporary_path_);
  descriptor_.reset();
  if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    throw SystemError::failed("rename", path_, errno);
  }
  committed_ = true;
  fsync_directory(folder_of(path_));
}

FileDigest write_new_file(const std::string& path, const FileContent& content) {
  const UniqueFd file = create_new(path);
  if (!file) throw SystemError::failed("create", path, errno);
  FileDigest digest;
  Sha256 sha256;
  content([&](std::span<const std::byte> bytes) {
    digest.bytes += bytes.size();
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min(bytes.size(), kWrittenAtOnce));
      write_piece(file, piece, path);
      sha256.update(piece);
      bytes = bytes.subspan(piece.size());
    }
  });
  flush(file, path);
  digest.sha256 = sha256.hex_digest();
  return digest;
}

void write_text_file(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

bool is_something_else(const std::string& path) {
  std::error_code ignored;
  const auto status = fs::status(path, ignored);
  return fs::exists(status) && !fs::is_regular_file(status);
}

std::string behind_links(std::string path) {
  constexpr int kMaxLinks = 40;  // the kernel follows no more
  std::error_code ignored;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(path, ignored); ++i) {
    path = (fs::path(path).parent_path() / fs::read_symlink(path, ignored)).string();
  }
  return path;
}

int error_of_replacing(const std::string& path) {
  const std::string folder = folder_of(path) + "/.";  // of a file, ENOTDIR
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) return errno;
  struct statx found{};
  if (::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_TYPE, &found) != 0) {
    return errno == ENOENT ? 0 : errno;
  }
  if (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) return EBUSY;
  // The wrong call for this kind of file removes nothing. The kernel notices that last: after the
  // attributes, and the owner in a sticky folder.
  const bool is_folder = S_ISDIR(found.stx_mode);
  const int result = is_folder ? ::unlink(path.c_str()) : ::rmdir(path.c_str());
  return result == 0 || errno == (is_folder ? EISDIR : ENOTDIR) ? 0 : errno;
}

void require_writable_folder(std::string_view where, const std::string& path, std::int64_t bytes) {
  const std::string file = behind_links(path);
  std::error_code unknown;
  const auto space = fs::space(folder_of(file), unknown);
  std::string hint;
  if (path.empty() || is_something_else(path)) {
    hint = kNameAFile;
  } else if (fs::path(path).filename().string().size() > kLongestName) {
    hint = fmt::format("a name has at most {} bytes", kLongestName);
  } else if (const int error = error_of_replacing(file); error == 0) {
    if (unknown || space.available >= static_cast<std::uintmax_t>(bytes)) return;
    hint = fmt::format("it has {} bytes free, and the file needs {}: df -h {}", space.available,
                       bytes, folder_of(file));
  } else if (error == ENOENT) {
    hint = fmt::format("create the folder first: mkdir -p {}", folder_of(file));
  } else {
    hint = fmt::format("{}: {}", std::strerror(error), hint_for_errno(error, file));
  }
  throw UsageError::malformed(where, "a file in a folder that can be written", path, hint);
}

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    names.push_back(entries->path().filename().string());
  }
  if (error) throw SystemError::failed("list", folder, error.value());
  return names;
}

void rename_or_throw(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) throw SystemError::failed("rename", to, errno);
}

void fsync_directory(const std::string& folder) {
  const UniqueFd descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor) throw SystemError::failed("open", folder, errno);
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL) {  // EINVAL: not supported
    throw SystemError::failed("fsync", folder, errno);
  }
}

void create_directories_synced(const std::string& folder) {
  std::error_code ignored;  // mkdir reports what is wrong
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
