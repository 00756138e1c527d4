// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "ladder/amp/grad_scaler.h"
#include "ladder/checkpoint/checkpoint_parts.h"
#include "ladder/comm/process_group.h"
#include "ladder/core/log.h"
#include "ladder/nn/model.h"
#include "ladder/optim/lr_scheduler.h"

namespace ladder {

// The weights of a network. Of a stage of a pipeline, each rank writes its own. A save throws
// NumericError for parameters and running statistics that are not finite (see require_finite).
CheckpointPart model_part(const std::string& file, const torch::nn::Module& module);

// The state of an optimizer, under the names that `module` gives to its parameters; of a stage of a
// pipeline as above. A save throws NumericError for a state that is not finite.
CheckpointPart optimizer_part(const std::string& file, torch::optim::Optimizer& optimizer,
                              std::shared_ptr<const torch::nn::Module> module);

// The state from which a run resumes as if it had not been interrupted, in the order of
// preparation.
struct TrainingState {
  std::vector<std::shared_ptr<torch::nn::Module>> models;  // prepared
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers;
  std::vector<std::shared_ptr<LrScheduler>> schedulers;
  CheckpointParts loaders;  // their positions; the names of the files are chosen here
  CheckpointParts custom;
  std::shared_ptr<GradScaler> scaler;  // may be null
  torch::Device device = torch::kCPU;  // its random generator is saved beside the CPU's
};

// Throws UsageError for an optimizer with parameters that are in none of the models: no checkpoint
// would have them.
void require_models(const TrainingState& state);

// The parts of a checkpoint of it, by the names below.
CheckpointParts parts_of(const TrainingState& state);

struct SaveStateOptions {
  bool only_model = false;  // weights and registered objects alone; no run can resume from them
  bool latest = true;       // update the link `latest` beside the folder
};

// The files of a checkpoint; those of a second object of a kind end in _1:
//
//     model.safetensors             weights, without the prefix of any wrapper
//     optimizer.safetensors         see OptimizerState, and optimizer_archive.h for optimizers of
//                                   another library
//     scheduler.json                see LrScheduler::state_dict
//     sampler.json                  {"epoch": 0, "batch": 100, "batches": 938}
//     scaler.json                   if enabled; see GradScaler::state_dict
//     random_states_0.safetensors   of rank 0, and so on; see random_state.h
//     custom_checkpoint_0.json      of a registered object without a file name
//
// The names are those of Accelerate's save_state, without its pickles. Stages of a pipeline have
// model_rank_0.safetensors, optimizer_rank_0.safetensors and so on; a registered object whose state
// differs between the ranks, custom_checkpoint_0_rank_0.json and so on (checkpoint_parts.h).
//
// A collective; see save_parts. Throws UsageError as require_models, too.
void save_training_state(const std::string& path, const TrainingState& state,
                         const ProcessGroup& group, const SaveStateOptions& options = {});

// load_parts, and a log line for each option of an optimizer that it changes, and if the random
// generators stay as they are, because the checkpoint has those of another number of ranks.
std::string load_training_state(const std::string& path, const TrainingState& state,
                                const ProcessGroup& group, const Log& log);

}  // namespace ladder
