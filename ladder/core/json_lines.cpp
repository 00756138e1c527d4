// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/json_lines.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ladder/core/error.h"

namespace ladder {

namespace {

// 0, or why a file could not be opened for writing; changes nothing.
int why_not_writable(const std::string& path) {
  const std::filesystem::path file(path);
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) return EISDIR;
  const bool exists = std::filesystem::exists(file, ignored);
  const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  const char* asked = exists ? file.c_str() : folder.c_str();
  return ::faccessat(AT_FDCWD, asked, exists ? W_OK : W_OK | X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

std::string hint_for(int error) {
  const char* next = error == ENOENT ? "create the folder first" : "name another file";
  return fmt::format("{}: {}", std::strerror(error), next);
}

}  // namespace

JsonLines::JsonLines(const std::string& path, std::string_view field, OldRecords old_records)
    : path_(path), old_records_(old_records) {
  const int error = why_not_writable(path);
  if (error == 0) return;
  throw UsageError::malformed(field, "a file that can be written", path, hint_for(error));
}

void JsonLines::write(const nlohmann::ordered_json& record) {
  if (path_.empty()) return;
  const char* mode = old_records_ == OldRecords::kKeep ? "ae" : "we";
  if (!file_) file_.reset(std::fopen(path_.c_str(), mode));
  if (!file_) throw SystemError::failed("open", path_, errno);
  using Handler = nlohmann::ordered_json::error_handler_t;
  const std::string line = record.dump(-1, ' ', false, Handler::replace) + '\n';
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size();
  if (!written || std::fflush(file_.get()) != 0) throw SystemError::write_failed(path_, errno);
}

}  // namespace ladder
