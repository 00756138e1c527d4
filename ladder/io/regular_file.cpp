// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/regular_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/system_limits.h"

namespace ladder {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr int kWithoutWaiting = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

void describe_error(int error, const std::string& path, RegularFile& file) {
  file.error = error;
  file.problem = fmt::format("'{}'", std::strerror(error));
  file.hint = hint_for_errno(error, path);
  if (error == ENOENT || error == ENOTDIR) {
    file.problem = "none";
  } else if (error == ELOOP) {
    file.problem = "a link";
    file.hint = fmt::format("name the file that it leads to: ls -l {}", path);
  } else if (error == ENXIO) {  // of open: nothing else is refused like that
    file.problem = "a socket";
    file.hint = "name a file";
  }
}

RegularFile checked(int descriptor, const std::string& path) {
  const int error = errno;
  RegularFile file{
      .descriptor = UniqueFd(descriptor), .bytes = 0, .error = 0, .problem = "", .hint = ""};
  struct stat status{};
  if (!file.descriptor) {
    if (is_limit_of_system(error)) throw SystemError::failed("open", path, error);
    describe_error(error, path, file);
  } else if (::fstat(descriptor, &status) != 0) {
    describe_error(errno, path, file);
  } else if (!S_ISREG(status.st_mode)) {
    file.error = EISDIR;
    file.problem = kind_of(status.st_mode);
    file.hint = S_ISDIR(status.st_mode) ? fmt::format("name the file inside it: ls {}", path)
                                        : std::string("name a file");
  }
  file.bytes = static_cast<std::uint64_t>(status.st_size);
  return file;
}

}  // namespace

RegularFile open_regular_file(const std::string& path) {
  return checked(::open(path.c_str(), kWithoutWaiting), path);
}

RegularFile open_regular_file_in(int folder, const std::string& name) {
  return checked(::openat(folder, name.c_str(), kWithoutWaiting | O_NOFOLLOW), name);
}

RegularFile open_data_file(const std::string& path) {
  auto file = open_regular_file(path);
  if (file.problem.empty()) return file;
  throw DataError::mismatch(path, "a readable file", file.problem, file.hint);
}

int read_pieces(const RegularFile& file,
                const std::function<bool(std::span<const std::byte>)>& take) {
  std::vector<std::byte> piece(kPieceBytes);
  for (;;) {
    const ssize_t count = ::read(file.descriptor.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 ? errno : 0;
    if (!take(std::span(piece).first(static_cast<std::size_t>(count)))) return 0;
  }
}

int read_at(const RegularFile& file, std::uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = std::min(bytes.size(), kPieceBytes);
    const ssize_t count =
        ::pread(file.descriptor.get(), bytes.data(), piece, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 ? errno : EIO;
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return 0;
}

}  // namespace ladder
