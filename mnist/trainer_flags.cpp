// SPDX-License-Identifier: Apache-2.0
#include "mnist/trainer_flags.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/trainer/argument_file.h"
#include "ladder/trainer/argument_table.h"

namespace mnist {
namespace {

using namespace ladder;

constexpr const char* kGroup = "Training arguments, with the defaults of --profile none";

// Arguments of the optimizer, which is the recipe's under --profile parity.
constexpr std::array<std::string_view, 5> kOptimizerArguments = {
    "optim", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"};

void add_unsupported_flag(Flags& flags, const UnsupportedArgument& argument,
                          std::vector<std::string>& notes) {
  flags.unlisted(flag_of(argument.name),
                 [&argument, &notes](const std::string& flag, const std::string& value) {
                   auto note = accept_default(argument, flag, value);
                   if (note) notes.push_back(std::move(*note));
                 });
}

constexpr Option<CommandTexts> kProfiles[] = {
    ladder::option<&CommandTexts::profile>(
        Effect::kTraining, "profile", "parity|hf-defaults|none",
        "source of the defaults: other stages, transformers' example, or transformers"),
    ladder::option<&CommandTexts::args_file>(
        Effect::kOwn, "args_file", "PATH",
        "JSON or YAML file with training arguments, one NAME: VALUE each", tables::kInput),
};

UsageError optimizer_of_recipe(const std::string& where) {
  return UsageError::conflict(where, "with --profile parity the optimizer is the recipe's",
                              "add --profile none, or omit it");
}

bool is_of_optimizer(std::string_view name) {
  return std::find(kOptimizerArguments.begin(), kOptimizerArguments.end(), name) !=
         kOptimizerArguments.end();
}

void apply_args_file(Flags& flags, TrainerRunOptions& options, const CommandTexts& texts) {
  TrainingArguments checked;
  const auto defaults = to_json(TrainingArguments{});
  const auto entries = read_argument_file(texts.args_file, options.notes);
  assign(entries, texts.args_file, checked, options.notes);
  for (const auto& entry : entries) {
    if (options.parity && is_of_optimizer(entry.name)) {
      if (to_json(checked).at(entry.name) != defaults.at(entry.name)) {
        throw optimizer_of_recipe(entry.where);
      }
      continue;  // as in the training_args.json of such a run
    }
    const bool foreign = find_unsupported_argument(entry.name) != nullptr;
    const bool alone = entry.name == "resume_from_checkpoint" && text_of(entry.value).empty();
    if (foreign || alone || entry.value.is_null()) continue;
    flags.preset(flag_of(entry.name), text_of(entry.value), entry.where);
  }
}

using Presets = std::vector<std::pair<const char*, std::string>>;

Presets parity_presets(const RecipeOptions& recipe) {
  const auto defaults = with_defaults({.name = recipe.name});
  return {{"--num-train-epochs", fmt::format("{}", *defaults.epochs)},
          {"--per-device-train-batch-size", fmt::format("{}", *defaults.batch_size)},
          {"--per-device-eval-batch-size", fmt::format("{}", *defaults.eval_batch_size)},
          {"--learning-rate", fmt::format("{}", *defaults.lr)},
          {"--lr-scheduler-type", "constant"},
          {"--max-grad-norm", "0"},
          {"--accelerator-config", R"({"split_batches": true, "even_batches": false})"},
          {"--logging-strategy", "no"},
          {"--eval-strategy", "no"},
          {"--save-strategy", "no"},
          {"--output-dir", ""}};
}

Presets hf_presets() {
  return {{"--output-dir", "basic-trainer"},
          {"--per-device-train-batch-size", "64"},
          {"--per-device-eval-batch-size", "64"},
          {"--num-train-epochs", "1"},
          {"--eval-strategy", "epoch"}};
}

// --save-steps for --save-strategy: who sets the first wants the second.
std::string steps_of(const std::string& strategy) {
  return strategy.substr(0, strategy.rfind('-')) + "-steps";
}

void apply_profile(Flags& flags, const TrainerRunOptions& options, const std::string& profile) {
  Presets presets;
  if (profile == "parity") presets = parity_presets(options.recipe);
  if (profile == "hf-defaults") presets = hf_presets();
  presets.insert(presets.end(), {{"--do-train", "true"}, {"--do-eval", "true"}});
  for (const auto& [flag, value] : presets) {
    const bool wanted = value == "no" && flags.given(steps_of(flag));
    flags.preset(flag, wanted ? "steps" : value, "--profile");
  }
}

}  // namespace

void add_trainer_flags(Flags& flags, TrainerRunOptions& options, CommandTexts& texts) {
  texts.profile = "parity";
  flags.add(kProfiles, texts);
  flags.add(training_argument_table(), options.training, kGroup);
  for (const auto& argument : unsupported_argument_table()) {
    add_unsupported_flag(flags, argument, options.notes);
  }
  for (const auto& name : deprecated_names()) {
    flags.spelling(flag_of(name.old), flag_of(name.now),
                   [&options, &name] { options.notes.push_back(deprecation_warning(name)); });
  }
}

void apply_trainer_presets(Flags& flags, TrainerRunOptions& options, CommandTexts& texts) {
  options.parity = texts.profile == "parity";
  // The argument is true by default; only the flag keeps images in host memory, as in other stages.
  texts.pin_memory = flags.given("--dataloader-pin-memory");
  for (const auto name : kOptimizerArguments) {
    if (options.parity && flags.given(flag_of(name))) throw optimizer_of_recipe(flag_of(name));
  }
  if (!texts.args_file.empty()) apply_args_file(flags, options, texts);
  apply_profile(flags, options, texts.profile);
}

void name_recipe(TrainerRunOptions& options) {
  for (auto& [name, value] : options.record.flags) {
    const auto is_its = [&](std::string_view own) { return name == flag_of(own); };
    if (std::ranges::any_of(kOptimizerArguments, is_its)) value = "recipe";
  }
}

void complete_settings(RunSettings& settings) {
  std::set<std::string> arguments;
  for (const auto& row : training_argument_table()) arguments.insert(flag_of(row.name));
  std::erase_if(settings, [&](const auto& setting) { return arguments.contains(setting.name); });
  for (auto& setting : settings) {
    if (setting.name == "--load") setting.effect = Effect::kTraining;
  }
}

}  // namespace mnist
