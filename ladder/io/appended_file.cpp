// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/appended_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "ladder/core/clock.h"
#include "ladder/core/error.h"
#include "ladder/io/atomic_file.h"
#include "ladder/io/json.h"

namespace ladder {
namespace {

int flags_of(OldRecords old_records) {
  constexpr int kWithoutWaiting = O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const int always = kWithoutWaiting | O_APPEND;  // behind the end, even if another program cut it
  return old_records == OldRecords::kRefuse ? always | O_EXCL : always;
}

}  // namespace

std::string reader_of_pipe(const std::string& path) {
  return fmt::format("it is a pipe without a reader: start one first: cat {} &", path);
}

AppendedFile::AppendedFile(std::string path, OldRecords old_records,
                           std::chrono::milliseconds patience)
    : path_(std::move(path)), patience_(patience) {
  constexpr mode_t kAsUmaskAllows = 0666;
  descriptor_.reset(::open(path_.c_str(), flags_of(old_records), kAsUmaskAllows));
  struct stat status{};
  if (!descriptor_ || ::fstat(descriptor_.get(), &status) != 0) {
    const int error = errno;
    const auto hint =
        error == ENXIO && std::filesystem::is_fifo(path_) ? reader_of_pipe(path_) : "";
    throw SystemError::failed("open", path_, error, hint);
  }
  if (!S_ISREG(status.st_mode)) {
    if (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode)) return;
    throw SystemError::failed("open", path_, EINVAL, "name another file");
  }
  // Until the program ends, so that lines of two runs do not mix. Some file systems have no locks.
  if (::flock(descriptor_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw SystemError::failed("lock", path_, EWOULDBLOCK,
                              "another run writes it: name another file");
  }
  if (old_records == OldRecords::kReplace && ::ftruncate(descriptor_.get(), 0) != 0) {
    throw SystemError::failed("truncate", path_, errno);
  }
}

std::uint64_t AppendedFile::size() const {
  struct stat status{};
  const bool known = ::fstat(descriptor_.get(), &status) == 0 && S_ISREG(status.st_mode);
  return known ? static_cast<std::uint64_t>(status.st_size) : 0;
}

void AppendedFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_.get(), bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      wait_for_reader();
    } else if (errno != EINTR) {
      throw SystemError::failed("write", path_, errno);
    }
  }
}

void AppendedFile::wait_for_reader() const {
  pollfd pipe{.fd = descriptor_.get(), .events = POLLOUT, .revents = 0};
  for (Deadline deadline(patience_); !deadline.passed();) {
    const int ready = ::poll(&pipe, 1, static_cast<int>(deadline.slice().count()));
    if (ready > 0 || (ready < 0 && errno == EINTR)) return;
  }
  throw SystemError::failed("write", path_, ETIMEDOUT,
                            fmt::format("its reader has read nothing for {} s",
                                        static_cast<double>(patience_.count()) / 1000.0));
}

namespace {

namespace fs = std::filesystem;

constexpr const char* kNameAnotherFile = "name another file";

// What is wrong with a file to write, for a hint; "" if nothing is. Changes nothing.
std::string writing_problem(const std::string& path) {
  std::error_code ignored;
  const auto file = behind_links(path);  // of one that leads nowhere, the folder behind it counts
  const auto status = fs::status(file, ignored);
  if (fs::is_directory(status))
    return fmt::format("{}: {}", std::strerror(EISDIR), kNameAnotherFile);
  if (fs::is_socket(status)) return fmt::format("it is a socket: {}", kNameAnotherFile);
  if (fs::is_block_file(status)) return fmt::format("it is a disk: {}", kNameAnotherFile);
  const int refusal = ::faccessat(AT_FDCWD, file.c_str(), W_OK, AT_EACCESS) == 0 ? 0 : errno;
  const int error = fs::exists(status) ? refusal : error_of_replacing(file);
  if (error == 0) return "";
  return fmt::format("{}: {}", std::strerror(error),
                     error == ENOENT ? "create the folder first" : kNameAnotherFile);
}

}  // namespace

JsonLines::JsonLines(const std::string& path, std::string_view field, OldRecords old_records)
    : path_(path), old_records_(old_records) {
  auto problem = writing_problem(path);
  if (problem.empty() && std::filesystem::is_fifo(path)) {
    try {
      file_ = AppendedFile(path_, old_records_);
    } catch (const SystemError&) {
      problem = reader_of_pipe(path);
    }
  }
  if (problem.empty()) return;
  throw UsageError::malformed(field, "a file that can be written", path, problem);
}

void JsonLines::write(const nlohmann::ordered_json& record) {
  if (path_.empty()) return;
  if (!file_) file_ = AppendedFile(path_, old_records_);
  file_.write(json_text(record) + '\n');
}

}  // namespace ladder
