// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/checkpoint/checkpoint_store.h"
#include "ladder/comm/process_group.h"
#include "ladder/core/log.h"

namespace ladder {

// A checkpoint is a list of parts: a file, what writes it, and what reads it. A hand-written loop
// saves and resumes with a list of its own:
//
//     const CheckpointParts parts = {model_part("model.safetensors", model),
//                                    json_part(scheduler, "scheduler.json")};
//     if (checkpoint_exists("run")) load_parts("run", parts, group, log);
//     ...
//     save_parts("run", parts, group);
//
// training_state.h makes the list of a training's objects.

// Applies what a plan_load has checked. It cannot fail, and is called at most once.
using Apply = std::function<void()>;

struct CheckpointPart {
  // Its name in the folder; rank 0 writes it. Empty for a part of which each rank has its own.
  std::string file;
  // With "{}" in the place of the rank. Beside a `file`: each rank writes its own if the ranks
  // would write different ones.
  std::string file_of_each_rank = {};

  // Passes the bytes. Empty: nothing is written.
  FileContent save;
  // Checks the file at `path`, and returns the function that applies it.
  std::function<Apply(const std::string& path)> plan_load;
  // The same for the files of each rank in a checkpoint of another number of ranks, in rank order.
  // Empty: such a checkpoint is refused.
  std::function<Apply(const std::vector<std::string>& paths)> plan_load_of_ranks = {};
  // Whether a checkpoint without it can be loaded.
  bool may_be_missing = false;
};

using CheckpointParts = std::vector<CheckpointPart>;

// Has state_dict() and plan_load(), as all objects of this library that a checkpoint contains.
template <typename Object>
concept PlansLoading =
    requires(Object& object, const nlohmann::json& state, std::string_view origin) {
      { object.state_dict() } -> std::convertible_to<nlohmann::json>;
      { object.plan_load(state, origin) } -> std::convertible_to<Apply>;
    };

// Has state_dict() and load_state_dict(), which checks and applies.
template <typename Object>
concept LoadsState =
    requires(Object& object, const nlohmann::json& state, std::string_view origin) {
      { object.state_dict() } -> std::convertible_to<nlohmann::json>;
      object.load_state_dict(state, origin);
    };

// "environment_rank_{}.json" for "environment.json".
std::string name_of_each_rank(std::string file);

// A JSON file of rank 0. `plan_load` and `plan_load_of_ranks` get what the files hold, and the path
// of the first.
using PlanJson = std::function<Apply(const nlohmann::json& state, std::string_view origin)>;
using PlanJsons =
    std::function<Apply(const std::vector<nlohmann::json>& states, std::string_view origin)>;
CheckpointPart json_part(std::string file, std::function<nlohmann::json()> save, PlanJson plan_load,
                         const PlanJsons& plan_load_of_ranks = {});

// The state of an object, which must outlive the part. If it differs between the ranks, each rank
// writes its own: "environment_rank_1.json" for "environment.json". Such a checkpoint is refused
// with another number of ranks, unless the object has
//     Apply plan_load_of_ranks(const std::vector<nlohmann::json>& states, std::string_view origin);
// An object whose state on rank 0 serves all ranks says so, as one with times or logs in it:
//     static constexpr bool kSavedByRank0 = true;
template <typename Object>
CheckpointPart json_part(Object& object, std::string file) {
  static_assert(PlansLoading<Object> || LoadsState<Object>,
                "a registered object needs nlohmann::json state_dict() const, and plan_load or "
                "load_state_dict(const nlohmann::json& state, std::string_view origin)");
  const auto plan = [&object](const nlohmann::json& state, std::string_view origin) -> Apply {
    if constexpr (PlansLoading<Object>) {
      return object.plan_load(state, origin);
    } else {
      return [&object, state, from = std::string(origin)] { object.load_state_dict(state, from); };
    }
  };
  PlanJsons plan_of_ranks;
  if constexpr (requires { &Object::plan_load_of_ranks; }) {
    plan_of_ranks = [&object](const auto& states, std::string_view origin) {
      return object.plan_load_of_ranks(states, origin);
    };
  }
  auto part = json_part(
      std::move(file), [&object] { return nlohmann::json(object.state_dict()); }, plan,
      plan_of_ranks);
  if constexpr (!requires { Object::kSavedByRank0; }) {
    part.file_of_each_rank = name_of_each_rank(part.file);
  }
  return part;
}

// What rank 0 would write now, as of a JSON file. For a part with a `file`.
nlohmann::json json_of(const CheckpointPart& part);

// Writes the checkpoint `path` (checkpoint_store.h). A collective: rank 0 writes all files but
// those of other ranks. If a rank fails, all throw, and the previous content of the folder is
// unchanged. A slow disk is waited for (run_together.h).
//
// Throws UsageError for two parts with one file, DistributedError if ranks do not see the folder
// that rank 0 creates, and what a part's `save` throws.
void save_parts(const std::string& path, CheckpointParts parts, const ProcessGroup& group,
                const CheckpointOptions& options = {});

// Opens, on every rank, the checkpoint that `path` leads to on rank 0. Throws
// DistributedError on all ranks, naming those that have another checkpoint there or none: ranks
// that go on from different weights would train for nothing. A collective.
Checkpoint open_checkpoint_together(const std::string& path, const ProcessGroup& group);

// Opens the checkpoint on all ranks, reads and checks everything, then applies it in the order of
// the parts. The `path` of rank 0 counts. After an error nothing has changed, except for an object
// without plan_load: it is checked when it is applied. Throws DataError for a damaged checkpoint, a
// file that no part has, or a part without its file; UsageError for files of another number of
// ranks. Logs and returns the checkpoint's folder. A collective.
std::string load_parts(const std::string& path, const CheckpointParts& parts,
                       const ProcessGroup& group, const Log& log);

}  // namespace ladder
