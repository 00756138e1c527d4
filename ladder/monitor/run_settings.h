// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/core/log.h"

namespace ladder {

// What another value of an option changes: a column of each table of options, from which follows
// what the ranks compare, what a run saves with its progress, and what a run that resumes refuses.
enum class Effect {
  kWeights,    // what the weights are for: compared between ranks; saved; a resume refuses another
  kTraining,   // the training: compared between ranks; saved; a resume logs another
  kOptimizer,  // the optimizer: compared between ranks; saved; its state has it, so a resume keeps
               // the value of the checkpoint and logs another, as load_training_state() does
  kTogether,   // the output that ranks make together, such as evaluations: compared between ranks
  kFolder,     // the same, with a folder that may be each rank's own: set on all ranks or on none
  kOwn,        // speed or output of one process: not compared
};

// An option of a run, such as {"--head", "logits"}.
//
// Restored weights are useful to the function that they were trained for: with another head,
// another normalisation or another arithmetic, a run goes on without an error, and its result is of
// neither the one nor the other. So a run saves its settings with its progress, and a run that
// resumes compares them.
struct RunSetting {
  std::string name;   // as the user sets it
  std::string value;  // in full, also where it is the default
  Effect effect = Effect::kWeights;
};
using RunSettings = std::vector<RunSetting>;

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
