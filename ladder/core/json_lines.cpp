// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/json_lines.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "ladder/core/error.h"

namespace ladder {
namespace {

// The errno of opening a file for writing, or 0; changes nothing.
int writing_error(const std::string& path) {
  const std::filesystem::path file(path);
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) return EISDIR;
  const bool exists = std::filesystem::exists(file, ignored);
  const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  const char* checked = exists ? file.c_str() : folder.c_str();
  return ::faccessat(AT_FDCWD, checked, exists ? W_OK : W_OK | X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

}  // namespace

AppendedFile::AppendedFile(std::string path, const char* mode)
    : path_(std::move(path)), file_(std::fopen(path_.c_str(), mode)) {
  if (!file_) throw SystemError::failed("open", path_, errno);
}

void AppendedFile::write(std::string_view bytes) {
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size();
  if (!written || std::fflush(file_.get()) != 0) throw SystemError::write_failed(path_, errno);
}

JsonLines::JsonLines(const std::string& path, std::string_view field, OldRecords old_records)
    : path_(path), old_records_(old_records) {
  const int error = writing_error(path);
  if (error == 0) return;
  const char* fix = error == ENOENT ? "create the folder first" : "name another file";
  throw UsageError::malformed(field, "a file that can be written", path,
                              fmt::format("{}: {}", std::strerror(error), fix));
}

void JsonLines::write(const nlohmann::ordered_json& record) {
  if (path_.empty()) return;
  if (!file_) file_ = AppendedFile(path_, old_records_ == OldRecords::kKeep ? "ae" : "we");
  file_.write(record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n');
}

}  // namespace ladder
