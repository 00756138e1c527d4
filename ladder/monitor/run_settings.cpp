// SPDX-License-Identifier: Apache-2.0
#include "ladder/monitor/run_settings.h"

#include <fmt/core.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "ladder/core/error.h"
#include "ladder/io/json.h"

namespace ladder {

std::map<std::string, std::string> settings_of_ranks(const RunSettings& settings) {
  std::map<std::string, std::string> compared;
  for (const auto& [name, value, effect] : settings) {
    if (effect == Effect::kOwn) continue;
    const bool is_folder = effect == Effect::kFolder;
    compared[name] = value.empty() ? "unset" : is_folder ? "set" : value;
  }
  return compared;
}

nlohmann::json settings_to_json(const RunSettings& settings) {
  auto json = nlohmann::json::object();
  for (const auto& setting : settings) {
    if (setting.effect <= Effect::kOptimizer)
      json[setting.name] = setting.value.empty() ? "unset" : setting.value;
  }
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
  for (const auto& setting : own) {
    const auto& name = setting.name;
    if (setting.effect > Effect::kTraining || !settings.contains(name)) continue;
    const auto written = settings.text(name);
    const auto value = setting.value.empty() ? "unset" : setting.value;
    if (written == value) continue;
    if (setting.effect == Effect::kWeights) {
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
