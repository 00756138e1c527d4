// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/core/log.h"

namespace ladder {

// A setting that defines a run, such as {"--head", "logits"}.
//
// Restored weights are useful to the function that they were trained for: with another head,
// another normalisation or another arithmetic, a run goes on without an error, and its result is of
// neither the one nor the other. So a run saves its settings with its progress, and a run that
// resumes compares them.
struct RunSetting {
  std::string name;   // as the user sets it
  std::string value;  // in full, also where it is the default
  // Another value changes the training and not the meaning of the weights, such as a batch size.
  bool may_change = false;
};
using RunSettings = std::vector<RunSetting>;

// {"--head": "logits", ...}
nlohmann::json settings_to_json(const RunSettings& settings);

// Compares the saved settings with those of this run. A setting that differs is an error
// (UsageError, which names `origin`), or a line of the log if it may change. A setting that only
// one side has is not compared: versions of a program differ in them. `saved` is null in a
// checkpoint of a version without settings; a line of the log reports that nothing was compared.
void compare_settings(const nlohmann::json& saved, const RunSettings& own, std::string_view origin,
                      const Log& log);

}  // namespace ladder
