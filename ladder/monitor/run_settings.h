// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "ladder/core/log.h"
#include "ladder/core/run_setting.h"

namespace ladder {

// Restored weights are useful to the function that they were trained for: with another head,
// another normalisation or another arithmetic, a run goes on without an error, and its result is of
// neither the one nor the other. So a run saves its settings with its progress, and a run that
// resumes compares them.

// Those that all ranks must have, for ProcessGroupOptions::settings.
std::map<std::string, std::string> settings_of_ranks(const RunSettings& settings);

// The member of a state that has the saved settings. Those of another run differ.
inline constexpr const char* kSettings = "settings";

// Those that are saved: {"--head": "logits", ...}
nlohmann::json settings_to_json(const RunSettings& settings);

// Compares the saved settings with those of this run. One that differs is an error (UsageError,
// which names `origin`), or a line of the log if it changes only the training. A setting that only
// one side has is not compared: versions of a program differ in them. `saved` is null in a
// checkpoint of a version without settings; a line of the log reports that nothing was compared.
void compare_settings(const nlohmann::json& saved, const RunSettings& own, std::string_view origin,
                      const Log& log);

}  // namespace ladder
