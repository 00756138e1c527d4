// SPDX-License-Identifier: Apache-2.0
#include "ladder/monitor/run_settings.h"

#include <fmt/core.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "ladder/core/error.h"
#include "ladder/io/json.h"

namespace ladder {

nlohmann::json settings_to_json(const RunSettings& settings) {
  auto json = nlohmann::json::object();
  for (const auto& setting : settings) json[setting.name] = setting.value;
  return json;
}

void compare_settings(const nlohmann::json& saved, const RunSettings& own, std::string_view origin,
                      const Log& log) {
  if (own.empty()) return;
  if (saved.is_null()) {
    log.info(fmt::format("{}: written without settings, so none were compared", origin));
    return;
  }
  const JsonReader settings(saved, json_data_error(origin), " as settings");
  for (const auto& [name, value, may_change] : own) {
    if (!settings.contains(name) || settings.text(name) == value) continue;
    const auto written = settings.text(name);
    if (!may_change) {
      const auto weights = std::filesystem::path(origin).replace_filename("model.safetensors");
      throw UsageError::conflict(
          origin,
          fmt::format("it was written with {0}={1}, and this run has {0}={2}", name, written,
                      value),
          fmt::format("resume with {}={}, or begin a new run and load {}", name, written,
                      weights.string()));
    }
    log.info(fmt::format("{}: {} was {}, and is {} from here on", origin, name, written, value));
  }
}

}  // namespace ladder
