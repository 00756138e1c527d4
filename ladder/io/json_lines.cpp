// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/json_lines.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/io/atomic_file.h"
#include "ladder/io/json.h"

namespace ladder {
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
