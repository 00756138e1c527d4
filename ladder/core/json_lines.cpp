// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/json_lines.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "ladder/core/error.h"

namespace ladder {

JsonLines::JsonLines(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "we")) {
  if (file_) return;
  throw UsageError::malformed(
      "file of records", "a path that can be written", path,
      fmt::format("{}: create the folder first, or name another file", std::strerror(errno)));
}

void JsonLines::write(const nlohmann::ordered_json& record) {
  if (!file_) return;
  using Handler = nlohmann::ordered_json::error_handler_t;
  const std::string line = record.dump(-1, ' ', false, Handler::replace) + '\n';
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size();
  if (!written || std::fflush(file_.get()) != 0) throw SystemError::write_failed(path_, errno);
}

}  // namespace ladder
