// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

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

// An option of a run, such as {"--head", "logits"}; see run_settings.h.
struct RunSetting {
  std::string name;   // as the user sets it
  std::string value;  // in full, also where it is the default
  Effect effect = Effect::kWeights;
};
using RunSettings = std::vector<RunSetting>;

}  // namespace ladder
