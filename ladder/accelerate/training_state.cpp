// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/training_state.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <memory>
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
#include "ladder/optim/fused_optimizer.h"
#include "ladder/optim/optimizer_state.h"

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
                             "use ladder::AdamW or ladder::SGD, or leave it out of prepare");
}

// The model that holds the optimizer's parameters, by which their states are named.
const Model& model_of(const torch::optim::Optimizer& optimizer, const TrainingState& state) {
  const auto& first = optimizer.param_groups().at(0).params().at(0);
  for (const auto& model : state.models) {
    const auto own = model->parameters();
    const auto is_first = [&](const torch::Tensor& parameter) { return parameter.is_same(first); };
    if (std::any_of(own.begin(), own.end(), is_first)) return *model;
  }
  throw UsageError::conflict("save_state", "the model of a prepared optimizer is not prepared",
                             "call accelerator.prepare(model) too");
}

void write_json(const std::string& path, const nlohmann::json& json) {
  write_text_file(path, json.dump(2) + '\n');
}

// The files that rank 0 writes, each with what writes it to a path. One list for saving, for the
// names of a checkpoint, and for what is missing or too many in one.
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
    files[name] = [save = std::move(save)](const auto& path) { write_json(path, save()); };
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

// `ranks`: those whose random states are there.
std::vector<std::string> all_names(const std::map<std::string, Writer>& files, int ranks) {
  std::vector<std::string> names;
  for (const auto& [name, write] : files) names.push_back(name);
  for (int rank = 0; rank < ranks; ++rank) names.push_back(random_states_of(rank));
  return names;
}

TrainingState only_model(const TrainingState& state) {
  return {.models = state.models,
          .custom = state.custom,
          .scaler = std::make_shared<GradScaler>(GradScalerOptions{.enabled = false})};
}

int random_states_in(const Checkpoint& checkpoint) {
  int ranks = 0;
  while (checkpoint.contains(random_states_of(ranks))) ++ranks;
  return ranks;
}

// Each kind of file is there as often as the kind is prepared. The scaler's may be missing or too
// many: a run may go on in another precision.
void require_same_files(const Checkpoint& checkpoint, const TrainingState& state) {
  const auto wanted = files_of_main_process(state);
  std::set<std::string> held;
  for (const auto& [name, digest] : checkpoint.manifest()) {
    if (!name.starts_with("random_states_") && name != "scaler.json") held.insert(name);
  }
  const char* const hint = "prepare and register the same objects as the run that wrote it";
  for (const auto& [name, write] : wanted) {
    if (name == "scaler.json" || held.erase(name) == 1) continue;
    throw DataError::mismatch(checkpoint.path(), name, "a checkpoint without it", hint);
  }
  if (!held.empty()) {
    throw DataError::mismatch(checkpoint.path(), "only the state of what is prepared",
                              *held.begin(), hint);
  }
}

// The rates that a run begins with: those its schedules were made with, else the optimizers' own.
std::vector<double> first_rates(const TrainingState& state) {
  std::vector<double> rates;
  for (const auto& optimizer : state.optimizers) {
    const auto schedule =
        std::find_if(state.schedulers.begin(), state.schedulers.end(),
                     [&](const auto& each) { return &each->optimizer() == optimizer.get(); });
    if (schedule != state.schedulers.end()) {
      const auto& base = (*schedule)->base_lrs();
      rates.insert(rates.end(), base.begin(), base.end());
      continue;
    }
    for (const auto& group : optimizer->param_groups()) rates.push_back(group.options().get_lr());
  }
  return rates;
}

// Once for all parameter groups that share a rate.
void tell_of_other_rates(const std::vector<double>& asked, const std::vector<double>& restored,
                         const Log& log) {
  std::set<std::string> told;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (restored[i] == asked[i]) continue;
    auto line =
        fmt::format("learning rate {}, as in the checkpoint, and not {}", restored[i], asked[i]);
    if (told.insert(line).second) log.info(line);
  }
}

class LoadPlan {
 public:
  LoadPlan(const Checkpoint& checkpoint, const TrainingState& state)
      : checkpoint_(checkpoint), state_(state) {}

  void add_tensors() {
    for (std::size_t i = 0; i < state_.models.size(); ++i) {
      const auto path = checkpoint_.file(numbered("model", i, "safetensors"));
      add(plan_load_state_dict(*state_.models[i], load_safetensors(path).tensors, path));
    }
    for (std::size_t i = 0; i < state_.optimizers.size(); ++i) {
      auto& optimizer = *state_.optimizers[i];
      const auto path = checkpoint_.file(numbered("optimizer", i, "safetensors"));
      add(fused(optimizer).plan_load(model_of(optimizer, state_),
                                     optimizer_state_from(load_safetensors(path), path), path));
    }
  }

  void add_numbers() {
    for (std::size_t i = 0; i < state_.schedulers.size(); ++i) {
      add_json(numbered("scheduler", i, "json"), *state_.schedulers[i]);
    }
    for (std::size_t i = 0; i < state_.loaders.size(); ++i) {
      add_json(numbered("sampler", i, "json"), state_.loaders[i]);
    }
    if (state_.scaler->is_enabled() && checkpoint_.contains("scaler.json")) {
      add_json("scaler.json", *state_.scaler);
    }
    for (const auto& custom : state_.custom) add_json(custom.file, custom);
  }

  void add_random_state(int rank) {
    const auto path = checkpoint_.file(random_states_of(rank));
    add(plan_load_random_state(load_safetensors(path).tensors, state_.device, path));
  }

  void apply() const {
    for (const auto& step : steps_) step();
  }

 private:
  void add(std::function<void()> step) { steps_.push_back(std::move(step)); }

  void add_json(const std::string& name, auto& object) {
    const auto path = checkpoint_.file(name);
    add(object.plan_load(read_saved_json(path), path));
  }

  const Checkpoint& checkpoint_;
  const TrainingState& state_;
  std::vector<std::function<void()>> steps_;
};

}  // namespace

void save_training_state(const std::string& path, const TrainingState& state,
                         const ProcessGroup& group, const SaveStateOptions& options) {
  const TrainingState saved = options.only_model ? only_model(state) : state;
  const auto files = files_of_main_process(saved);
  const int random_states = options.only_model ? 0 : group.world_size();
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
    if (is_main) writer->commit(all_names(files, random_states));
  });
}

std::string load_training_state(const std::string& path, const TrainingState& state,
                                const ProcessGroup& group, const Log& log) {
  std::unique_ptr<const Checkpoint> checkpoint;
  std::unique_ptr<LoadPlan> plan;
  run_or_fail_together(group, "load_state", [&] {
    checkpoint = std::make_unique<const Checkpoint>(open_checkpoint(path));
    require_same_files(*checkpoint, state);
    plan = std::make_unique<LoadPlan>(*checkpoint, state);
    plan->add_tensors();
    plan->add_numbers();
    const int ranks = random_states_in(*checkpoint);
    if (ranks == group.world_size()) return plan->add_random_state(group.rank());
    log.info(
        fmt::format("{} was written by {} processes, this run has {}: random generators stay "
                    "as they are",
                    checkpoint->path(), ranks, group.world_size()));
  });
  const auto rates = first_rates(state);
  plan->apply();
  log.info("resumed from " + checkpoint->path());
  tell_of_other_rates(rates, first_rates(state), log);
  return checkpoint->path();
}

}  // namespace ladder
