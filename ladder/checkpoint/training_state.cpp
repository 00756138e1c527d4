// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/training_state.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "ladder/checkpoint/random_state.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/checkpoint/sharded_state.h"
#include "ladder/checkpoint/stateful_optimizer.h"
#include "ladder/core/error.h"
#include "ladder/io/atomic_file.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/network_part.h"

namespace ladder {
namespace {

// "model.safetensors", "model_1.safetensors", ...
std::string numbered(const char* kind, std::size_t number, const char* suffix = "") {
  return fmt::format("{}{}{}", kind, number == 0 ? "" : fmt::format("_{}", number), suffix);
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

// Loads what a file holds, of which the names of tensors are those of a module.
using PlanFile = std::function<Apply(SafetensorsFile file, const std::string& origin)>;

// A part in safetensors. Stages of one network have other tensors on each rank, and so have shards,
// of which any number of ranks loads those of any other.
CheckpointPart tensors_part(const std::string& file, FileContent save, const PlanFile& plan,
                            const torch::nn::Module& module) {
  CheckpointPart part{.file = file, .save = std::move(save)};
  part.plan_load = [plan](const std::string& path) { return plan(load_safetensors(path), path); };
  if (!group_of_parts(module.parameters())) return part;
  part.file_of_each_rank = name_of_each_rank(part.file);
  if (!is_sharded(module)) {
    part.file.clear();
    return part;
  }
  part.plan_load_of_ranks = [plan, &module](const std::vector<std::string>& paths) {
    std::vector<StateDict> saved;
    SafetensorsFile own;
    for (const auto& path : paths) {
      auto of_rank = load_safetensors(path);
      saved.push_back(std::move(of_rank.tensors));
      own.metadata = std::move(of_rank.metadata);
    }
    own.tensors = own_shards(module, saved, paths.at(0));
    return plan(std::move(own), paths[0]);
  };
  part.plan_load = [of_ranks = part.plan_load_of_ranks](const std::string& path) {
    return of_ranks({path});
  };
  return part;
}

CheckpointPart random_part(const torch::Device& device) {
  return {.file = "",
          .file_of_each_rank = "random_states_{}.safetensors",
          .save =
              [device](const auto& write) {
                write_safetensors({.tensors = random_state(device)}, write);
              },
          .plan_load =
              [device](const std::string& path) {
                return plan_load_random_state(load_safetensors(path).tensors, device, path);
              },
          .plan_load_of_ranks = [](const auto& /*paths*/) { return Apply(); },
          .may_be_missing = true};
}

// It may be missing or unused: a run may resume in another precision.
CheckpointPart scaler_part(GradScaler& scaler) {
  CheckpointPart part{.file = "scaler.json", .may_be_missing = true};
  if (!scaler.is_enabled()) return part;
  part = json_part(scaler, "scaler.json");
  part.may_be_missing = true;
  return part;
}

// What each parameter group was set to at the start of a run: {"lr": ..., "weight_decay": ...}. The
// learning rate is the base rate of the group's schedule, if it has one.
std::vector<nlohmann::json> initial_options(const TrainingState& state) {
  std::vector<nlohmann::json> all;
  for (const auto& optimizer : state.optimizers) {
    auto groups = stateful(*optimizer)->group_options();
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

}  // namespace

void require_models(const TrainingState& state) {
  for (const auto& optimizer : state.optimizers) {
    if (!owners_of(*optimizer, state).contains(state.models.size())) continue;
    throw UsageError::conflict(
        "save_state", "the model of a prepared optimizer is not prepared, or has no such parameter",
        "call accelerator.prepare(model) too; register a tensor of your own in a module");
  }
}

CheckpointPart model_part(const std::string& file, const torch::nn::Module& module) {
  const auto save = [&module, file](const auto& write) {
    require_finite(module, file);
    write_safetensors(model_file(module), write);
  };
  const auto plan = [&module](SafetensorsFile saved, const std::string& origin) {
    return plan_load_state_dict(const_cast<torch::nn::Module&>(module), saved.tensors, origin);
  };
  return tensors_part(file, save, plan, module);
}

CheckpointPart optimizer_part(const std::string& file, torch::optim::Optimizer& optimizer,
                              std::shared_ptr<const torch::nn::Module> module) {
  const auto save = [&optimizer, module, file](const auto& write) {
    const auto saved = stateful(optimizer)->saved(*module);
    require_finite(saved.tensors, file);
    write_safetensors(saved, write);
  };
  const auto plan = [&optimizer, module](SafetensorsFile saved, const std::string& origin) {
    return stateful(optimizer)->plan_load(*module, std::move(saved), origin);
  };
  return tensors_part(file, save, plan, *module);
}

CheckpointParts parts_of(const TrainingState& state) {
  CheckpointParts parts;
  for (std::size_t i = 0; i < state.models.size(); ++i) {
    parts.push_back(model_part(numbered("model", i, ".safetensors"), *state.models[i]));
  }
  for (std::size_t i = 0; i < state.optimizers.size(); ++i) {
    auto& optimizer = *state.optimizers[i];
    parts.push_back(optimizer_part(numbered("optimizer", i, ".safetensors"), optimizer,
                                   model_of(optimizer, state)));
  }
  for (std::size_t i = 0; i < state.schedulers.size(); ++i) {
    parts.push_back(json_part(*state.schedulers[i], numbered("scheduler", i, ".json")));
  }
  for (std::size_t i = 0; i < state.loaders.size(); ++i) {
    parts.push_back(state.loaders[i]);
    parts.back().file = numbered("sampler", i, ".json");
  }
  if (state.scaler) parts.push_back(scaler_part(*state.scaler));
  parts.insert(parts.end(), state.custom.begin(), state.custom.end());
  parts.push_back(random_part(state.device));
  return parts;
}

void save_training_state(const std::string& path, const TrainingState& state,
                         const ProcessGroup& group, const SaveStateOptions& options) {
  TrainingState saved = state;
  if (options.only_model) {
    saved = {.models = state.models, .custom = state.custom};
  }
  require_models(saved);
  for (const auto& scheduler : state.schedulers) scheduler->settle();
  for (const auto& optimizer : saved.optimizers) stateful(*optimizer)->consolidate();
  auto parts = parts_of(saved);
  if (options.only_model) parts.pop_back();  // the random states
  save_parts(path, parts, group, {.latest = options.latest});
}

std::string load_training_state(const std::string& path, const TrainingState& state,
                                const ProcessGroup& group, const Log& log) {
  require_models(state);
  auto parts = parts_of(state);
  parts.back().plan_load_of_ranks = [&](const std::vector<std::string>& paths) {
    log.info(fmt::format(
        "{} has the random states of {} ranks, and this run has {}: random generators are "
        "not restored",
        paths.empty() ? path : folder_of(paths[0]), paths.size(), group.world_size()));
    return Apply();
  };
  const auto requested = initial_options(state);
  const auto checkpoint = load_parts(path, parts, group, log);
  log_changed_options(requested, initial_options(state), log);
  return checkpoint;
}

}  // namespace ladder
