// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "ladder/armour/checkpoint_folder.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/comm/run_together.h"
#include "ladder/comm/texts.h"
#include "ladder/core/error.h"
#include "ladder/io/atomic_file.h"
#include "ladder/io/json.h"
#include "ladder/trainer/argument_table.h"
#include "ladder/trainer/trainer.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "checkpoint-";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kState = "trainer_state.json";
constexpr const char* kArguments = "training_args.json";
constexpr const char* kAllResults = "/all_results.json";

void write_json(const std::string& path, const nlohmann::json& json) {
  write_text_file(path, json_text(json, 4));
}

constexpr std::array kFlags = {
    std::pair("should_training_stop", &TrainerControl::should_training_stop),
    std::pair("should_epoch_stop", &TrainerControl::should_epoch_stop),
    std::pair("should_save", &TrainerControl::should_save),
    std::pair("should_evaluate", &TrainerControl::should_evaluate),
    std::pair("should_log", &TrainerControl::should_log)};

nlohmann::json json_of(const TrainerControl& control) {
  auto flags = nlohmann::json::object();
  for (const auto& [name, flag] : kFlags) flags[name] = control.*flag;
  return {{"args", flags}, {"attributes", nlohmann::json::object()}};
}

TrainerControl control_from(const nlohmann::json& json, const std::string& origin) {
  TrainerControl control;
  const JsonReader flags = JsonReader(json, json_data_error(origin)).object("args");
  for (const auto& [name, flag] : kFlags) control.*flag = flags.value(name) == true;
  return control;
}

// Whether a training ends with the same weights, whatever the value of this argument.
bool is_of_output(const std::string& name) {
  const auto* row = find_argument(name);
  return row != nullptr && (row->effect == Effect::kTogether || row->effect == Effect::kFolder ||
                            row->effect == Effect::kOwn);
}

}  // namespace

nlohmann::json Trainer::ArgumentsFile::state_dict() const { return to_json(trainer.args_); }

// An argument that changes the training or its output is logged: the intervals and batch sizes of
// the checkpoint stay, as in transformers. One that defines what the weights are for must be equal:
// with another accumulation, global_step would be another position in the data; with other labels,
// the restored optimizer would follow another loss.
std::function<void()> Trainer::ArgumentsFile::plan_load(const nlohmann::json& state,
                                                        std::string_view origin) const {
  const auto present = state_dict();
  const JsonReader saved(state, json_data_error(origin));
  for (const auto& row : training_argument_table()) {
    if (!saved.contains(row.name) || saved.value(row.name) == present.at(row.name)) continue;
    const auto was = json_text(saved.value(row.name));
    const auto is = json_text(present.at(row.name));
    if (row.effect == Effect::kWeights) {
      throw DataError::mismatch(fmt::format("{}: {}", origin, row.name), is, was,
                                "resume with the value of the checkpoint");
    }
    if (row.effect != Effect::kTraining && row.effect != Effect::kTogether) continue;
    trainer.accelerator_.log().info(
        fmt::format("{}: {} is {}, the arguments have {}", origin, row.name, was, is));
  }
  return [] {};
}

std::string Trainer::checkpoint_path(std::int64_t step) const {
  return fmt::format("{}/{}{}", args_.output_dir, kPrefix, step);
}

// The main process chooses: the folders of the others may differ.
std::string Trainer::checkpoint_to_resume(const std::string& path) const {
  std::string chosen = path;
  if ((path == "true" || path == "auto") && args_.output_dir.empty()) {
    throw UsageError::missing("resume_from_checkpoint", "output_dir, the folder of the checkpoints",
                              "set output_dir");
  }
  if (path == "true") {
    on_rank_0(accelerator_.process_group(), "resume_from_checkpoint", [&] {
      chosen = newest_folder(args_.output_dir, kPrefix);
      if (chosen.empty()) {
        throw DataError::mismatch(args_.output_dir, "a checkpoint to resume from", "none",
                                  "train without resume_from_checkpoint, or name a checkpoint");
      }
    });
    chosen = broadcast_text(chosen, accelerator_.process_group());
  }
  if (path == "auto") {
    chosen = newest_training_state(args_.output_dir, kPrefix, accelerator_.process_group(),
                                   accelerator_.log());
  }
  if (chosen.empty()) return chosen;
  on_rank_0(accelerator_.process_group(), "resume_from_checkpoint", [&] {
    const auto has = [&](const char* file) { return fs::exists(fs::path(chosen) / file); };
    if (!has(kWeights) || has("optimizer.safetensors") || has("scheduler.json")) return;
    throw DataError::mismatch(chosen, "a checkpoint with optimizer state", "none",
                              "it was saved with save_only_model: load its model instead");
  });
  return chosen;
}

void Trainer::resume(const std::string& checkpoint) {
  accelerator_.load_state(checkpoint);
  // With other batches, the steps of the checkpoint count those of this run, as in transformers.
  if (train_loader_->resumes_other_batches()) {
    const auto batch = state_.global_step % plan_.updates * plan_.sizes.accumulation_steps;
    train_loader_->resume_at(state_.global_step / plan_.updates, batch);
  }
  if (args_.ignore_data_skip) train_loader_->resume_at(next_epoch(), 0);
  if (state_.best_model_checkpoint && !fs::exists(*state_.best_model_checkpoint)) {
    accelerator_.log().info(fmt::format("{}: the best checkpoint, {}, no longer exists", checkpoint,
                                        *state_.best_model_checkpoint));
    state_.best_model_checkpoint.reset();
  }
  if (!args_.restore_callback_states_from_checkpoint) return;
  callbacks_.load_state_dicts(state_.stateful_callbacks, checkpoint, accelerator_.log());
  const auto control = state_.stateful_callbacks.find("TrainerControl");
  if (control != state_.stateful_callbacks.end())
    control_ = control_from(control->second, checkpoint);
}

// A run that resumes may have more steps.
RunIdentity Trainer::identity(bool resumes) const {
  auto arguments = arguments_file_.state_dict();
  std::erase_if(arguments.get_ref<nlohmann::json::object_t&>(), [&](const auto& argument) {
    const bool is_length = argument.first == "max_steps" || argument.first == "num_train_epochs";
    return is_of_output(argument.first) || (resumes && is_length);
  });
  RunIdentity own = {{kArguments, arguments}};
  for (auto& part : accelerator_.identity()) own.push_back(std::move(part));
  if (resumes) return own;
  own.push_back({kState, {{"max_steps", state_.max_steps}}});
  own.push_back({"sampler.json", {{"batches", train_loader_->size()}}});
  return own;
}

void Trainer::require_own_output_dir(const std::string& resumed_from, bool automatically) const {
  const bool saves = args_.save_strategy != SaveStrategy::kNo && !args_.fast_dev_run;
  const auto& folder = args_.output_dir;
  on_rank_0(accelerator_.process_group(), "output_dir", [&] {
    if (folder.empty()) return;
    const auto where = "output_dir " + folder;
    all_results();  // which save_metrics completes after the training: not the time to find damage
    for (const auto* name :
         {kAllResults, "/train_results.json", "/eval_results.json", "/test_results.json"}) {
      require_writable_folder(where, folder + name);
    }
    if (!saves) return;
    require_no_foreign_folders(folder, kPrefix);
    std::error_code ignored;
    const bool resumes =
        !resumed_from.empty() && fs::equivalent(folder_of(resumed_from), folder, ignored);
    if (resumes && !automatically) return;
    const auto own = identity(resumes);
    for (const auto& checkpoint : list_checkpoints(folder, kPrefix)) {
      if (!args_.overwrite_output_dir) {
        require_own_checkpoint(
            where, checkpoint.path, own,
            "name another output_dir, go on with resume_from_checkpoint, or remove them with "
            "overwrite_output_dir");
      }
      const int error = resumes ? 0 : error_of_replacing(checkpoint.path);
      if (error != 0) throw SystemError::failed("replace", checkpoint.path, error);
      const auto difference = difference_of(checkpoint.path, own);
      if (difference.empty()) continue;
      remove_checkpoint(checkpoint.path);
      accelerator_.log().info(
          fmt::format("removed {}, of another run: {}", checkpoint.path, difference));
    }
  });
}

bool Trainer::is_new_best(const Metrics& metrics) {
  if (args_.metric_for_best_model.empty()) return false;
  const double value = required_metric(metrics, args_);
  const bool greater = args_.greater_is_better.value_or(false);
  const double infinity = std::numeric_limits<double>::infinity();
  const double best = state_.best_metric.value_or(greater ? -infinity : infinity);
  const bool is_better = greater ? value > best : value < best;
  if (!is_better || !std::isfinite(value)) return false;  // of a model that has diverged
  state_.best_metric = value;
  if (args_.save_strategy != SaveStrategy::kNo) state_.best_global_step = state_.global_step;
  return true;
}

void Trainer::save_checkpoint(bool only_model) {
  if (args_.output_dir.empty()) {
    throw UsageError::missing("should_save", "output_dir, the folder of the checkpoints",
                              "set output_dir");
  }
  const auto path = checkpoint_path(state_.global_step);
  if (state_.best_global_step) {
    const auto best = checkpoint_path(*state_.best_global_step);
    if (best == path || fs::exists(best)) state_.best_model_checkpoint = best;
  }
  state_.stateful_callbacks = callbacks_.state_dicts();
  state_.stateful_callbacks["TrainerControl"] = json_of(control_);
  accelerator_.save_state(path, {.only_model = only_model, .latest = false});
  if (!args_.save_total_limit) return;
  std::vector<std::string> keep = {path};
  if (state_.best_model_checkpoint) keep.push_back(*state_.best_model_checkpoint);
  limit_checkpoints(keep, *args_.save_total_limit);
}

void Trainer::limit_checkpoints(const std::vector<std::string>& keep, std::int64_t limit) const {
  ladder::limit_checkpoints(args_.output_dir, kPrefix, static_cast<std::size_t>(limit), keep,
                            accelerator_.process_group(), accelerator_.log());
}

void Trainer::load_best_model() {
  const auto best =
      broadcast_text(state_.best_model_checkpoint.value_or(""), accelerator_.process_group());
  if (best.empty()) return;
  print_lines({fmt::format("Loading best model from {} (score: {}).", best,
                           python_float(state_.best_metric.value_or(0.0)))});
  const auto checkpoint = open_checkpoint_together(best, accelerator_.process_group());
  run_or_fail_together(accelerator_.process_group(), "load_best_model_at_end",
                       [&] { load_model(*model_, checkpoint.file(kWeights)); });
}

void Trainer::save_model(const std::string& output_dir) {
  const auto& folder = output_dir.empty() ? args_.output_dir : output_dir;
  if (folder.empty()) {
    throw UsageError::missing("save_model", "a folder", "pass one, or set output_dir");
  }
  on_rank_0(accelerator_.process_group(), "save_model", [&] {
    fs::create_directories(folder);
    write_json(fmt::format("{}/{}", folder, kArguments), to_json(args_));
  });
  accelerator_.save_model(*model_, folder + '/' + kWeights);
}

void Trainer::log_metrics(const std::string& split, const Metrics& metrics) const {
  if (accelerator_.options().quiet) return;
  for (const auto& line : metrics_lines(split, metrics)) accelerator_.print(line);
}

void Trainer::save_metrics(const std::string& split, const Metrics& metrics) const {
  if (args_.output_dir.empty()) return;
  on_rank_0(accelerator_.process_group(), "save_metrics", [&] {
    const auto numbers = to_json(metrics);
    write_json(fmt::format("{}/{}_results.json", args_.output_dir, split), numbers);
    auto all = all_results();
    all.update(numbers);
    write_json(args_.output_dir + kAllResults, all);
  });
}

nlohmann::json Trainer::all_results() const {
  const auto path = args_.output_dir + kAllResults;
  if (!fs::exists(path)) return nlohmann::json::object();
  try {
    auto all = read_untrusted_json(path);
    if (all.is_object()) return all;
  } catch (const DataError&) {  // its hint is for checkpoints
  }
  throw DataError::mismatch(path, "the metrics of earlier runs, in JSON", "something else",
                            "remove it: rm " + path);
}

void Trainer::save_state() const {
  if (args_.output_dir.empty()) return;
  on_rank_0(accelerator_.process_group(), "save_state", [&] {
    write_json(fmt::format("{}/{}", args_.output_dir, kState), state_.state_dict());
  });
}

}  // namespace ladder
