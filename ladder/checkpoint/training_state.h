// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/amp/grad_scaler.h"
#include "ladder/checkpoint/checkpoint_folder.h"
#include "ladder/checkpoint/folder_lock.h"
#include "ladder/comm/process_group.h"
#include "ladder/core/log.h"
#include "ladder/nn/model.h"
#include "ladder/optim/lr_scheduler.h"

namespace ladder {

// A registered object: a function that returns its state, and one that checks a state and returns
// the function that applies it.
struct CustomState {
  std::string file;  // its name in the checkpoint
  std::function<nlohmann::json()> save;
  std::function<std::function<void()>(const nlohmann::json& state, std::string_view origin)>
      plan_load;
};

// Has state_dict() and plan_load(), as all objects of this library that a checkpoint contains.
template <typename Object>
concept PlansLoading =
    requires(Object& object, const nlohmann::json& state, std::string_view origin) {
      { object.state_dict() } -> std::convertible_to<nlohmann::json>;
      { object.plan_load(state, origin) } -> std::convertible_to<std::function<void()>>;
    };

// Has state_dict() and load_state_dict(), which checks and applies.
template <typename Object>
concept LoadsState =
    requires(Object& object, const nlohmann::json& state, std::string_view origin) {
      { object.state_dict() } -> std::convertible_to<nlohmann::json>;
      object.load_state_dict(state, origin);
    };

template <typename Object>
CustomState custom_state_of(Object& object, std::string file) {
  static_assert(PlansLoading<Object> || LoadsState<Object>,
                "a registered object needs nlohmann::json state_dict() const, and plan_load or "
                "load_state_dict(const nlohmann::json& state, std::string_view origin)");
  const auto plan = [&object](const nlohmann::json& state,
                              std::string_view origin) -> std::function<void()> {
    if constexpr (PlansLoading<Object>) {
      return object.plan_load(state, origin);
    } else {
      return [&object, state, from = std::string(origin)] { object.load_state_dict(state, from); };
    }
  };
  return {.file = std::move(file),
          .save = [&object] { return nlohmann::json(object.state_dict()); },
          .plan_load = plan};
}

// The state from which a run resumes as if it had not been interrupted, in the order of
// preparation.
struct TrainingState {
  std::vector<std::shared_ptr<torch::nn::Module>> models;  // prepared
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers;
  std::vector<std::shared_ptr<LrScheduler>> schedulers;
  std::vector<CustomState> loaders;  // their positions; the names of the files are chosen here
  std::vector<CustomState> custom;
  std::shared_ptr<GradScaler> scaler;  // may be null
  torch::Device device = torch::kCPU;  // its random generator is saved beside the CPU's
};

// Throws UsageError for an optimizer with parameters that are in none of the models: no checkpoint
// would have them.
void require_models(const TrainingState& state);

struct SaveStateOptions {
  bool only_model = false;  // weights and registered objects alone; no run can resume from them
  bool latest = true;       // update the link `latest` beside the folder
};

// The files of a checkpoint folder (checkpoint_folder.h); those of a second object of a kind end in
// _1:
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
// The names are those of Accelerate's save_state, without its pickles. A collective: rank 0 writes
// all files but the random states of other ranks. If a rank fails, all throw, and the previous
// content of the folder is unchanged. A slow disk is waited for (run_together.h).
//
// Throws NumericError for trained parameters, running statistics (see require_finite) and states of
// optimizers that are not finite, UsageError as require_models and for two objects with one file,
// and DistributedError if ranks do not see the folder that rank 0 creates.
void save_training_state(const std::string& path, const TrainingState& state,
                         const ProcessGroup& group, const SaveStateOptions& options = {});

// Opens, on every rank, the checkpoint that `path` leads to on rank 0; see open_checkpoint. Throws
// DistributedError on all ranks, naming those that have another checkpoint there or none: ranks
// that go on from different weights would train for nothing. A collective.
Checkpoint open_checkpoint_together(const std::string& path, const ProcessGroup& group);

// Opens the checkpoint on all ranks, reads and checks everything, then applies it. The `path` of
// rank 0 counts. After an error nothing has changed, except for a registered object without
// plan_load: it is checked when it is applied, last. Returns the checkpoint's folder. A collective.
std::string load_training_state(const std::string& path, const TrainingState& state,
                                const ProcessGroup& group, const Log& log);

// Locks `file` on rank 0, for a run that saves checkpoints beside it; see FolderLock. Waits for at
// most 5 s for another owner, under a launcher that restarts runs for the timeout of the group.
// Throws SystemError if the file, or `written`, which the run will replace, is in a folder that is
// not writable, or cannot be replaced. A collective. Null on other ranks. `present` is returned
// unless its file was removed, after which another run may own the folder.
std::unique_ptr<const FolderLock> lock_run(const std::string& where, const std::string& file,
                                           const std::string& written, const ProcessGroup& group,
                                           const Log& log,
                                           std::unique_ptr<const FolderLock> present = nullptr);

// What tells one run from another: members of the JSON files in its checkpoints, by file.
using RunIdentity = std::vector<std::pair<std::string, nlohmann::json>>;

// The "settings" of registered objects (run_settings.h), and the data. For rank 0.
RunIdentity identity_of(const TrainingState& state);

// In what the run that wrote `checkpoint` is another: "--seed is 42 there, and 7 here". "" if it
// is none, has no such members, or is damaged.
std::string difference_of(const std::string& checkpoint, const RunIdentity& own);

// Throws UsageError, which begins with `where`, for a checkpoint of another run. Beside it a run
// must not save: a resume would take either, and a limit would remove those of the other.
void require_own_checkpoint(const std::string& where, const std::string& checkpoint,
                            const RunIdentity& own, const std::string& hint);

// remove_old_checkpoints() on rank 0; a checkpoint that cannot be removed is a warning. A
// collective.
void limit_checkpoints(const std::string& parent, std::string_view prefix, std::size_t total_limit,
                       const std::vector<std::string>& keep, const ProcessGroup& group,
                       const Log& log);

// The newest intact checkpoint "PREFIX<number>" in `parent`; "" if there is none. Rank 0 chooses,
// and logs the choice and each damaged checkpoint that it passes over. A collective.
std::string newest_training_state(const std::string& parent, std::string_view prefix,
                                  const ProcessGroup& group, const Log& log);

}  // namespace ladder
