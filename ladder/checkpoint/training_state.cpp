// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/training_state.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>

#include "ladder/checkpoint/checkpoint_folder.h"
#include "ladder/checkpoint/loader_position.h"
#include "ladder/checkpoint/optimizer_archive.h"
#include "ladder/checkpoint/random_state.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/comm/run_together.h"
#include "ladder/comm/texts.h"
#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/io/atomic_file.h"
#include "ladder/io/json.h"
#include "ladder/io/sha256.h"
#include "ladder/launch/rank_status.h"
#include "ladder/monitor/run_settings.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/fused_optimizer.h"

namespace ladder {
namespace {

// "model.safetensors", "model_1.safetensors", ...
std::string numbered(const char* kind, std::size_t number, const char* suffix = "") {
  return fmt::format("{}{}{}", kind, number == 0 ? "" : fmt::format("_{}", number), suffix);
}

constexpr std::string_view kRandomStates = "random_states_";
std::string random_states_of(int rank) {
  return fmt::format("{}{}.safetensors", kRandomStates, rank);
}

FusedOptimizer* as_fused(torch::optim::Optimizer& optimizer) {
  return dynamic_cast<FusedOptimizer*>(&optimizer);
}

// The models that have the optimizer's parameters, by their number; the number of models for one
// that none has.
std::set<std::size_t> owners_of(const torch::optim::Optimizer& optimizer,
                                const TrainingState& state) {
  std::map<const void*, std::size_t> owners;
  for (std::size_t i = 0; i < state.models.size(); ++i) {
    for (const auto& each : state.models[i]->parameters()) {
      owners.emplace(each.unsafeGetTensorImpl(), i);
    }
  }
  std::set<std::size_t> found;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& each : group.params()) {
      const auto owner = owners.find(each.unsafeGetTensorImpl());
      found.insert(owner == owners.end() ? state.models.size() : owner->second);
    }
  }
  return found;
}

// The module by which the states of the optimizer's parameters are named: the model that has them,
// or for those of several, one with all models as "model", "model_1" and so on.
std::shared_ptr<torch::nn::Module> model_of(const torch::optim::Optimizer& optimizer,
                                            const TrainingState& state) {
  const auto owners = owners_of(optimizer, state);
  if (owners.size() == 1) return state.models.at(*owners.begin());
  auto all = std::make_shared<torch::nn::Module>("models");
  for (std::size_t i = 0; i < state.models.size(); ++i) {
    auto& own = const_cast<torch::nn::Module&>(unwrapped(*state.models[i]));
    all->register_module(numbered("model", i), own.shared_from_this());
  }
  return all;
}

// The files that rank 0 writes. Saving writes them all; loading compares their names with those of
// the checkpoint.
std::map<std::string, FileContent> files_of_main_process(const TrainingState& state) {
  std::map<std::string, FileContent> files;
  for (std::size_t i = 0; i < state.models.size(); ++i) {
    files[numbered("model", i, ".safetensors")] = [model = state.models[i]](const auto& write) {
      write_safetensors(model_file(*model), write);
    };
  }
  for (std::size_t i = 0; i < state.optimizers.size(); ++i) {
    auto& optimizer = *state.optimizers[i];
    files[numbered("optimizer", i, ".safetensors")] = [&](const auto& write) {
      const auto* const own = as_fused(optimizer);
      write_safetensors(own ? to_safetensors(own->state_dict(*model_of(optimizer, state)))
                            : archive_of(optimizer),
                        write);
    };
  }
  const auto add_json = [&files](const std::string& name, std::function<nlohmann::json()> save) {
    files[name] = [save = std::move(save)](const auto& write) {
      const std::string text =
          save().dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
      write(std::as_bytes(std::span(text)));
    };
  };
  for (std::size_t i = 0; i < state.schedulers.size(); ++i) {
    add_json(numbered("scheduler", i, ".json"),
             [scheduler = state.schedulers[i]] { return scheduler->state_dict(); });
  }
  for (std::size_t i = 0; i < state.loaders.size(); ++i) {
    add_json(numbered("sampler", i, ".json"), state.loaders[i].save);
  }
  if (state.scaler && state.scaler->is_enabled()) {
    add_json("scaler.json", [scaler = state.scaler] { return scaler->state_dict(); });
  }
  for (const auto& custom : state.custom) {
    if (files.contains(custom.file) || custom.file.starts_with(kRandomStates)) {
      throw UsageError::conflict("register_for_checkpointing",
                                 fmt::format("a second object with the file {}", custom.file),
                                 "choose another name for it");
    }
    add_json(custom.file, custom.save);
  }
  return files;
}

// One file per prepared object. The scaler's may be missing or unused: a run may resume in another
// precision.
void require_same_files(const Checkpoint& checkpoint, const TrainingState& state) {
  std::set<std::string> held;
  for (const auto& [name, digest] : checkpoint.manifest()) {
    if (!name.starts_with(kRandomStates) && name != "scaler.json") held.insert(name);
  }
  const char* const hint =
      "resume with the program that wrote it, or prepare and register the same objects";
  for (const auto& [name, write] : files_of_main_process(state)) {
    if (name == "scaler.json" || held.erase(name) == 1) continue;
    throw DataError::mismatch(checkpoint.path(), name, "a checkpoint without it", hint);
  }
  if (!held.empty()) {
    throw DataError::mismatch(checkpoint.path(), "only the state of prepared objects",
                              *held.begin(), hint);
  }
}

// What each parameter group was set to at the start of a run: {"lr": ..., "weight_decay": ...}. The
// learning rate is the base rate of the group's schedule, if it has one.
std::vector<nlohmann::json> initial_options(const TrainingState& state) {
  std::vector<nlohmann::json> all;
  for (const auto& optimizer : state.optimizers) {
    auto* const own = as_fused(*optimizer);
    if (own == nullptr) continue;
    auto groups = own->group_options();
    const auto schedule = std::ranges::find_if(
        state.schedulers, [&](const auto& each) { return &each->optimizer() == optimizer.get(); });
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (schedule != state.schedulers.end()) groups[i]["lr"] = (*schedule)->base_lrs()[i];
      all.push_back(std::move(groups[i]));
    }
  }
  return all;
}

// One line for all parameter groups that share a value.
void log_changed_options(const std::vector<nlohmann::json>& requested,
                         const std::vector<nlohmann::json>& restored, const Log& log) {
  std::set<std::string> lines;
  for (std::size_t i = 0; i < requested.size(); ++i) {
    for (const auto& [name, value] : requested[i].items()) {
      if (restored[i].value(name, value) == value) continue;
      lines.insert(fmt::format("{} {} from the checkpoint, not {} as requested",
                               name == "lr" ? "learning rate" : name, restored[i][name].dump(),
                               value.dump()));
    }
  }
  for (const auto& line : lines) log.info(line);
}

using Steps = std::vector<std::function<void()>>;

// Checks all files but the random states, and returns the functions that apply them.
Steps plan_load(const Checkpoint& checkpoint, const TrainingState& state) {
  require_models(state);
  Steps steps;
  for (std::size_t i = 0; i < state.models.size(); ++i) {
    const auto path = checkpoint.file(numbered("model", i, ".safetensors"));
    steps.push_back(plan_load_state_dict(*state.models[i], load_safetensors(path).tensors, path));
  }
  for (std::size_t i = 0; i < state.optimizers.size(); ++i) {
    auto& optimizer = *state.optimizers[i];
    auto* const own = as_fused(optimizer);
    const auto path = checkpoint.file(numbered("optimizer", i, ".safetensors"));
    auto file = load_safetensors(path);
    steps.push_back(own ? own->plan_load(*model_of(optimizer, state),
                                         optimizer_state_from(std::move(file), path), path)
                        : plan_load_archive(optimizer, file, path));
  }
  const auto add_json = [&](const std::string& name, auto& object) {
    const auto path = checkpoint.file(name);
    steps.push_back(object.plan_load(read_untrusted_json(path), path));
  };
  for (std::size_t i = 0; i < state.schedulers.size(); ++i) {
    add_json(numbered("scheduler", i, ".json"), *state.schedulers[i]);
  }
  for (std::size_t i = 0; i < state.loaders.size(); ++i) {
    add_json(numbered("sampler", i, ".json"), state.loaders[i]);
  }
  if (state.scaler && state.scaler->is_enabled() && checkpoint.contains("scaler.json")) {
    add_json("scaler.json", *state.scaler);
  }
  for (const auto& custom : state.custom) add_json(custom.file, custom);
  return steps;
}

// What would not be loaded again is not saved.
void require_finite_state(const TrainingState& state, const std::string& path, bool only_model) {
  for (const auto& model : state.models) require_finite(*model, path);
  if (only_model) return;
  for (const auto& optimizer : state.optimizers) {
    const auto* const own = as_fused(*optimizer);
    require_finite(own ? own->state_dict(*model_of(*optimizer, state)).tensors
                       : archive_of(*optimizer).tensors,
                   path);
  }
}

// "ranks 1, 3"
std::string ranks_text(const std::vector<std::size_t>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

DistributedError not_shared(std::string_view operation, const std::string& path,
                            const std::string& expected, const std::string& got) {
  return DistributedError::ranks_disagree(fmt::format("{}: {}", operation, path), expected, got,
                                          "name a folder on a disk that all ranks share");
}

// "learning_rate is 0.001 there, and 0.01 here", of the first member that differs; "" if none does.
std::string first_difference(const nlohmann::json& saved, const nlohmann::json& own) {
  for (const auto& [name, value] : own.items()) {
    if (!saved.is_object() || !saved.contains(name) || saved.at(name) == value) continue;
    const auto difference =
        name == kSettings ? first_difference(saved.at(name), value)
                          : fmt::format("{} is {} there, and {} here", name,
                                        json_for_message(saved.at(name)), json_for_message(value));
    if (!difference.empty()) return difference;
  }
  return "";
}

std::string without_hint(const std::string& error) {
  return error.substr(0, error.find("; hint:"));
}

// What a rank has found at the path of a checkpoint.
struct Found {
  std::string manifest_sha256;  // empty if it cannot be used
  std::string error;
};

void require_same_checkpoint(const std::string& path, const std::vector<Found>& found) {
  std::vector<std::size_t> other;
  std::vector<std::size_t> none;
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    const bool is_there = !found[rank].manifest_sha256.empty();
    if (is_there && found[rank].manifest_sha256 == found[0].manifest_sha256) continue;
    if (is_there && found[0].manifest_sha256.empty()) continue;
    (is_there ? other : none).push_back(rank);
  }
  std::vector<std::string> got;
  if (!other.empty()) got.push_back("another one on " + ranks_text(other));
  if (!none.empty()) {
    got.push_back(fmt::format("none on {} ({})", ranks_text(none), found[none.front()].error));
  }
  if (got.empty()) return;
  throw not_shared("load_state", path, "the checkpoint of rank 0 on all ranks",
                   fmt::format("{}", fmt::join(got, ", ")));
}

// Writes this rank's files into the checkpoint that rank 0 has begun. Empty if it is not there.
std::optional<CheckpointManifest> write_files(const std::string& path,
                                              const std::map<std::string, FileContent>& files) {
  if (!std::filesystem::is_directory(partial_checkpoint(path))) return std::nullopt;
  CheckpointManifest manifest;
  for (const auto& [name, content] : files) {
    manifest[name] = write_checkpoint_file(path, name, content);
  }
  return manifest;
}

// The files of all ranks, on every rank.
CheckpointManifest merged(const std::string& path, const std::optional<CheckpointManifest>& own,
                          const ProcessGroup& group) {
  std::string lines = own ? "files" : "none";
  for (const auto& [name, digest] : own.value_or(CheckpointManifest())) {
    lines += fmt::format("\n{} {} {}", name, digest.bytes, digest.sha256);
  }
  CheckpointManifest all;
  std::vector<std::size_t> without;
  const auto of_ranks = all_gather_text(lines, group);
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    std::istringstream stream(of_ranks[rank]);
    std::string name;
    FileDigest digest;
    stream >> name;
    if (name == "none") without.push_back(rank);
    while (stream >> name >> digest.bytes >> digest.sha256) all[name] = digest;
  }
  if (without.empty()) return all;
  throw not_shared("save_state", partial_checkpoint(path),
                   "the folder that rank 0 created on all ranks", "none on " + ranks_text(without));
}

}  // namespace

void require_models(const TrainingState& state) {
  for (const auto& optimizer : state.optimizers) {
    if (!owners_of(*optimizer, state).contains(state.models.size())) continue;
    throw UsageError::conflict(
        "save_state", "the model of a prepared optimizer is not prepared, or has no such parameter",
        "call accelerator.prepare(model) too; register a tensor of your own in a module");
  }
}

void save_training_state(const std::string& path, const TrainingState& state,
                         const ProcessGroup& group, const SaveStateOptions& options) {
  TrainingState saved = state;
  if (options.only_model) {
    saved = {.models = state.models, .custom = state.custom};
  }
  require_models(saved);
  for (const auto& scheduler : state.schedulers) scheduler->settle();
  for (const auto& optimizer : saved.optimizers) {
    if (auto* const own = as_fused(*optimizer)) own->consolidate_state_dict();
  }
  std::optional<SavingMark> saving(std::in_place, path);
  const bool is_main = group.rank() == 0;
  std::optional<CheckpointWriter> writer;
  std::map<std::string, FileContent> files;
  run_or_fail_together(group, "save_state", [&] {
    if (!options.only_model) {
      files[random_states_of(group.rank())] = [&](const auto& write) {
        write_safetensors({.tensors = random_state(state.device)}, write);
      };
    }
    if (!is_main) return;
    require_finite_state(state, path, options.only_model);
    files.merge(files_of_main_process(saved));
    writer.emplace(path, CheckpointOptions{.latest = options.latest});
  });
  std::optional<CheckpointManifest> own;
  run_or_fail_together(group, "save_state", [&] { own = write_files(path, files); });
  const auto manifest = merged(path, own, group);
  if (!is_main) saving.reset();  // its part is done
  run_or_fail_together(group, "save_state", [&] {
    if (!is_main) return;
    writer->commit(manifest);
    saving.reset();
  });
}

Checkpoint open_checkpoint_together(const std::string& path, const ProcessGroup& group) {
  const auto folder = broadcast_text(group.rank() == 0 ? checkpoint_at(path) : "", group);
  std::optional<Checkpoint> checkpoint;
  std::optional<DataError> refused;
  run_or_fail_together(group, "load_state", [&] {
    try {
      checkpoint.emplace(open_checkpoint(folder));
    } catch (const DataError& error) {
      refused.emplace(error);
    }
  });
  const auto own = checkpoint ? make_checkpoint_manifest(checkpoint->manifest()) : "";
  const auto sha256 = checkpoint ? sha256_hex(std::as_bytes(std::span(own))) : "";
  std::vector<Found> found;
  const auto error = refused ? without_hint(refused->what()) : "";
  for (const auto& text : all_gather_text(fmt::format("{}\n{}", sha256, error), group)) {
    const auto end = text.find('\n');
    found.push_back({text.substr(0, end), text.substr(end + 1)});
  }
  if (refused && found[0].manifest_sha256.empty()) throw *refused;  // of all, in most cases
  require_same_checkpoint(folder, found);
  return *std::move(checkpoint);
}

std::string load_training_state(const std::string& path, const TrainingState& state,
                                const ProcessGroup& group, const Log& log) {
  const auto checkpoint = open_checkpoint_together(path, group);
  Steps steps;
  run_or_fail_together(group, "load_state", [&] {
    require_same_files(checkpoint, state);
    steps = plan_load(checkpoint, state);
    int ranks = 0;
    while (checkpoint.contains(random_states_of(ranks))) ++ranks;
    if (ranks == group.world_size()) {
      const auto file = checkpoint.file(random_states_of(group.rank()));
      steps.push_back(plan_load_random_state(load_safetensors(file).tensors, state.device, file));
      return;
    }
    log.info(fmt::format(
        "{} has the random states of {} ranks, and this run has {}: random generators are "
        "not restored",
        checkpoint.path(), ranks, group.world_size()));
  });
  const auto requested = initial_options(state);
  for (const auto& step : steps) step();
  log.info("resumed from " + checkpoint.path());
  log_changed_options(requested, initial_options(state), log);
  return checkpoint.path();
}

std::unique_ptr<const FolderLock> lock_run(const std::string& where, const std::string& file,
                                           const std::string& written, const ProcessGroup& group,
                                           const Log& log,
                                           std::unique_ptr<const FolderLock> present) {
  constexpr std::chrono::milliseconds kForTheEndOfARun{5000};
  std::unique_ptr<const FolderLock> lock = std::move(present);
  run_or_fail_together(group, where, [&] {
    if (group.rank() != 0) return;
    if (lock != nullptr && (lock->is_in_place() || !lock->is_held())) return;
    const bool restarts = environment_integer("TORCHELASTIC_MAX_RESTARTS", 0).value_or(0) > 0;
    const auto wait = restarts ? group.timeout() : kForTheEndOfARun;
    create_directories_synced(folder_of(file));
    for (const auto& path : {file, written}) {
      const int error = error_of_replacing(path);
      if (error != 0 && error != ENOENT) throw SystemError::failed("write", path, error);
    }
    lock = std::make_unique<const FolderLock>(where, file, wait);
    if (lock->is_held()) return;
    log.warn(fmt::format("{}: its file system has no locks; start no second run there",
                         folder_of(file)));
  });
  return lock;
}

RunIdentity identity_of(const TrainingState& state) {
  RunIdentity identity;
  const auto add = [&](const std::string& file, const char* member, const nlohmann::json& saved) {
    if (saved.contains(member)) identity.push_back({file, {{member, saved.at(member)}}});
  };
  for (const auto& object : state.custom) add(object.file, kSettings, object.save());
  for (std::size_t i = 0; i < state.loaders.size(); ++i) {
    add(numbered("sampler", i, ".json"), kDataOfPosition, state.loaders[i].save());
  }
  return identity;
}

std::string difference_of(const std::string& checkpoint, const RunIdentity& own) {
  try {
    for (const auto& [file, members] : own) {
      const auto path = fmt::format("{}/{}", checkpoint, file);
      if (!std::filesystem::exists(path)) continue;
      const auto difference = first_difference(read_untrusted_json(path), members);
      if (!difference.empty()) return difference;
    }
  } catch (const DataError&) {  // an open of it would fail too
  }
  return "";
}

void require_own_checkpoint(const std::string& where, const std::string& checkpoint,
                            const RunIdentity& own, const std::string& hint) {
  const auto difference = difference_of(checkpoint, own);
  if (difference.empty()) return;
  throw UsageError::conflict(where, fmt::format("{} is of another run: {}", checkpoint, difference),
                             hint);
}

void limit_checkpoints(const std::string& parent, std::string_view prefix, std::size_t total_limit,
                       const std::vector<std::string>& keep, const ProcessGroup& group,
                       const Log& log) {
  run_or_fail_together(group, "total_limit", [&] {
    if (group.rank() != 0) return;
    remove_old_checkpoints(parent, prefix, total_limit, keep,
                           [&](const std::string& error) { log.warn(error); });
  });
}

std::string newest_training_state(const std::string& parent, std::string_view prefix,
                                  const ProcessGroup& group, const Log& log) {
  std::string newest;
  run_or_fail_together(group, "load_state", [&] {
    if (group.rank() != 0) return;
    newest = newest_intact_checkpoint(parent, prefix, [&](const std::string& error) {
      log.info("checkpoint passed over: " + error);
    });
  });
  newest = broadcast_text(newest, group);
  if (newest.empty()) {
    log.info(fmt::format("no checkpoint to resume from in {}: training from the start", parent));
  }
  return newest;
}

}  // namespace ladder
