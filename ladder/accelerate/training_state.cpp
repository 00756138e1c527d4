// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/training_state.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "ladder/accelerate/operations.h"
#include "ladder/checkpoint/atomic_file.h"
#include "ladder/checkpoint/checkpoint_folder.h"
#include "ladder/checkpoint/random_state.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/checkpoint/state_dict.h"
#include "ladder/core/error.h"
#include "ladder/core/json.h"
#include "ladder/optim/fused_optimizer.h"

namespace ladder {
namespace {

// "model.safetensors", "model_1.safetensors", ...
std::string numbered(const char* kind, std::size_t number, const char* suffix) {
  return number == 0 ? fmt::format("{}.{}", kind, suffix)
                     : fmt::format("{}_{}.{}", kind, number, suffix);
}

std::string random_states_of(int rank) { return fmt::format("random_states_{}.safetensors", rank); }

FusedOptimizer& fused(torch::optim::Optimizer& optimizer) {
  if (auto* const own = dynamic_cast<FusedOptimizer*>(&optimizer)) return *own;
  throw UsageError::conflict("save_state", "an optimizer whose state cannot be saved",
                             "use ladder::AdamW or ladder::SGD, or do not prepare it");
}

// The model that holds the optimizer's parameters, by which their states are named.
const Model& model_of(const torch::optim::Optimizer& optimizer, const TrainingState& state) {
  const auto& first = optimizer.param_groups().at(0).params().at(0);
  for (const auto& model : state.models) {
    const auto is_first = [&](const torch::Tensor& parameter) { return parameter.is_same(first); };
    if (std::ranges::any_of(model->parameters(), is_first)) return *model;
  }
  throw UsageError::conflict("save_state", "the model of a prepared optimizer is not prepared",
                             "call accelerator.prepare(model) too");
}

// The files that rank 0 writes, each with a function that writes it to a path. Saving writes them
// all; loading compares their names with those of the checkpoint.
using Writer = std::function<void(const std::string& path)>;
std::map<std::string, Writer> files_of_main_process(const TrainingState& state) {
  std::map<std::string, Writer> files;
  for (std::size_t i = 0; i < state.models.size(); ++i) {
    files[numbered("model", i, "safetensors")] = [model = state.models[i]](const auto& path) {
      save_model(*model, path);
    };
  }
  for (std::size_t i = 0; i < state.optimizers.size(); ++i) {
    auto& optimizer = *state.optimizers[i];
    files[numbered("optimizer", i, "safetensors")] = [&](const auto& path) {
      save_safetensors(path,
                       to_safetensors(fused(optimizer).state_dict(model_of(optimizer, state))));
    };
  }
  const auto add_json = [&files](const std::string& name, std::function<nlohmann::json()> save) {
    files[name] = [save = std::move(save)](const auto& path) {
      write_text_file(path, save().dump(2) + '\n');
    };
  };
  for (std::size_t i = 0; i < state.schedulers.size(); ++i) {
    add_json(numbered("scheduler", i, "json"),
             [scheduler = state.schedulers[i]] { return scheduler->state_dict(); });
  }
  for (std::size_t i = 0; i < state.loaders.size(); ++i) {
    add_json(numbered("sampler", i, "json"),
             [loader = state.loaders[i]] { return loader.state_dict(); });
  }
  for (const auto& custom : state.custom) add_json(custom.file, custom.save);
  if (state.scaler->is_enabled()) {
    add_json("scaler.json", [scaler = state.scaler] { return scaler->state_dict(); });
  }
  return files;
}

// One file per prepared object. The scaler's may be missing or unused: a run may resume in another
// precision.
void require_same_files(const Checkpoint& checkpoint, const TrainingState& state) {
  std::set<std::string> held;
  for (const auto& [name, digest] : checkpoint.manifest()) {
    if (!name.starts_with("random_states_") && name != "scaler.json") held.insert(name);
  }
  const char* const hint = "prepare and register the same objects as the run that wrote it";
  for (const auto& [name, write] : files_of_main_process(state)) {
    if (name == "scaler.json" || held.erase(name) == 1) continue;
    throw DataError::mismatch(checkpoint.path(), name, "a checkpoint without it", hint);
  }
  if (!held.empty()) {
    throw DataError::mismatch(checkpoint.path(), "only the state of prepared objects",
                              *held.begin(), hint);
  }
}

// The learning rates at the start of a run: the base rates of the schedules, else those of the
// optimizers.
std::vector<double> first_rates(const TrainingState& state) {
  std::vector<double> rates;
  for (const auto& optimizer : state.optimizers) {
    const auto schedule = std::ranges::find_if(
        state.schedulers, [&](const auto& each) { return &each->optimizer() == optimizer.get(); });
    if (schedule != state.schedulers.end()) {
      const auto& base = (*schedule)->base_lrs();
      rates.insert(rates.end(), base.begin(), base.end());
      continue;
    }
    for (const auto& group : optimizer->param_groups()) rates.push_back(group.options().get_lr());
  }
  return rates;
}

// One line for all parameter groups that share a rate.
void log_changed_rates(const std::vector<double>& requested, const std::vector<double>& restored,
                       const Log& log) {
  std::set<std::string> lines;
  for (std::size_t i = 0; i < requested.size(); ++i) {
    if (restored[i] == requested[i]) continue;
    lines.insert(fmt::format("learning rate {} from the checkpoint, not {} as requested",
                             restored[i], requested[i]));
  }
  for (const auto& line : lines) log.info(line);
}

using Steps = std::vector<std::function<void()>>;

// Checks all files but the random states, and returns the functions that apply them.
Steps plan_load(const Checkpoint& checkpoint, const TrainingState& state) {
  Steps steps;
  for (std::size_t i = 0; i < state.models.size(); ++i) {
    const auto path = checkpoint.file(numbered("model", i, "safetensors"));
    steps.push_back(plan_load_state_dict(*state.models[i], load_safetensors(path).tensors, path));
  }
  for (std::size_t i = 0; i < state.optimizers.size(); ++i) {
    auto& optimizer = *state.optimizers[i];
    const auto path = checkpoint.file(numbered("optimizer", i, "safetensors"));
    steps.push_back(fused(optimizer).plan_load(
        model_of(optimizer, state), optimizer_state_from(load_safetensors(path), path), path));
  }
  const auto add_json = [&](const std::string& name, auto& object) {
    const auto path = checkpoint.file(name);
    steps.push_back(object.plan_load(read_untrusted_json(path), path));
  };
  for (std::size_t i = 0; i < state.schedulers.size(); ++i) {
    add_json(numbered("scheduler", i, "json"), *state.schedulers[i]);
  }
  for (std::size_t i = 0; i < state.loaders.size(); ++i) {
    add_json(numbered("sampler", i, "json"), state.loaders[i]);
  }
  if (state.scaler->is_enabled() && checkpoint.contains("scaler.json")) {
    add_json("scaler.json", *state.scaler);
  }
  for (const auto& custom : state.custom) add_json(custom.file, custom);
  return steps;
}

}  // namespace

void save_training_state(const std::string& path, const TrainingState& state,
                         const ProcessGroup& group, const SaveStateOptions& options) {
  TrainingState saved = state;
  if (options.only_model) {
    saved = {.models = state.models,
             .custom = state.custom,
             .scaler = std::make_shared<GradScaler>(GradScalerOptions{.enabled = false})};
  }
  for (const auto& scheduler : state.schedulers) scheduler->settle();
  const auto files = files_of_main_process(saved);
  std::optional<CheckpointWriter> writer;
  const bool is_main = group.rank() == 0;
  run_or_fail_together(group, "save_state", [&] {
    if (!is_main) return;
    for (const auto& model : state.models) require_finite(*model, path);
    writer.emplace(path, CheckpointOptions{.latest = options.latest});
  });
  run_or_fail_together(group, "save_state", [&] {
    const std::string folder = partial_checkpoint(path) + '/';
    if (!options.only_model) {
      save_safetensors(folder + random_states_of(group.rank()),
                       {.tensors = random_state(state.device)});
    }
    if (!is_main) return;
    for (const auto& [name, write] : files) write(folder + name);
  });
  run_or_fail_together(group, "save_state", [&] {
    if (!is_main) return;
    std::vector<std::string> names;
    for (const auto& [name, write] : files) names.push_back(name);
    const int random_states = options.only_model ? 0 : group.world_size();
    for (int rank = 0; rank < random_states; ++rank) names.push_back(random_states_of(rank));
    writer->commit(names);
  });
}

std::string load_training_state(const std::string& path, const TrainingState& state,
                                const ProcessGroup& group, const Log& log) {
  std::unique_ptr<const Checkpoint> checkpoint;
  Steps steps;
  run_or_fail_together(group, "load_state", [&] {
    checkpoint = std::make_unique<const Checkpoint>(open_checkpoint(path));
    require_same_files(*checkpoint, state);
    steps = plan_load(*checkpoint, state);
    int ranks = 0;
    while (checkpoint->contains(random_states_of(ranks))) ++ranks;
    if (ranks == group.world_size()) {
      const auto file = checkpoint->file(random_states_of(group.rank()));
      steps.push_back(plan_load_random_state(load_safetensors(file).tensors, state.device, file));
      return;
    }
    log.info(fmt::format(
        "{} has the random states of {} ranks, and this run has {}: random generators are "
        "not restored",
        checkpoint->path(), ranks, group.world_size()));
  });
  const auto rates = first_rates(state);
  for (const auto& step : steps) step();
  log.info("resumed from " + checkpoint->path());
  log_changed_rates(rates, first_rates(state), log);
  return checkpoint->path();
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
