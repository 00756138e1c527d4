// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "mnist/command_line.h"
#include "mnist/flags.h"
#include "mnist/named_files.h"
#include "mnist/options.h"

namespace mnist {

// For mnist/ alone: what the command lines of all stages share. Each stage has four functions,
// which parse_command_line calls in this order:
//
//     add_flags        its flags, in the order of --help
//     apply_presets    flags that a profile or a file sets
//     complete         checks flags against each other, and fills in what follows from them
//     share_settings   the settings that the ranks compare

// --sums and --micro-batch, as written.
struct SumTexts {
  bool exact = false;
  std::int64_t micro_batch = ladder::ExactDataParallelOptions{}.micro_batch;
};

// As written: --args-file (JSON or YAML; empty = none) and --profile of a Trainer.
struct TrainerTexts {
  std::string args_file;
  std::string profile = "parity";
};

// Values of flags, as written.
struct CommandTexts {
  std::string profile = "none";
  std::int64_t timeout_seconds = 0;
  std::string hparams;
  SumTexts sums;
  TrainerTexts trainer;
  std::string save_path;  // of --save alone; empty = the recipe's

  std::vector<NamedFile> files_read() const {
    return {{"--hparams", hparams}, {"--args-file", trainer.args_file}};
  }
};

// Flags that several stages have.
void add_list(Flags& flags, ladder::Effect effect, const std::string& name,
              std::vector<std::string>& target, const char* type, const char* form,
              const std::string& help);
void add_recipe_name(Flags& flags, RecipeOptions& recipe);
void add_network_flags(Flags& flags, RecipeOptions& recipe);
void add_data_flags(Flags& flags, DataOptions& data);
void add_machine_flags(Flags& flags, SingleOptions& options);
void add_output_flags(Flags& flags, SingleOptions& options, const CommandTexts& texts);
void add_group_flags(Flags& flags, GroupOptions& options, std::int64_t& timeout_seconds);
void add_rank_flags(Flags& flags, RecipeOptions& recipe, std::int64_t& check_replicas,
                    SumTexts& sums);
void add_process_flags(Flags& flags, ProcessOptions& options, const std::string& help);
void add_launcher_flags(Flags& flags, GroupOptions& options);
void add_flags(Flags& flags, SingleOptions& options, CommandTexts& texts);

// Unset for sums in float.
std::optional<ladder::ExactDataParallelOptions> exact_options(const SumTexts& sums,
                                                              const Flags& flags,
                                                              std::int64_t check_replicas);
void require_masks_by_position(const RecipeOptions& recipe, bool exact);
void require_global_batches(bool global, const char* flag);
void require_growing_batch(const RecipeOptions& recipe, bool grows, const std::string& flag);
void complete_group(GroupOptions& options, const CommandTexts& texts, bool require_launcher);
void complete_all(SingleOptions& options, const Flags& flags, const CommandTexts& texts);
void share_settings(GroupOptions& options);

// The files that the flags name, `also_read` besides.
void check_files(const SingleOptions& options, std::vector<NamedFile> also_read);
std::string torchrun_here();
std::string version_text(const std::string& program);

inline void apply_presets(Flags& /*flags*/, SingleOptions& /*options*/,
                          const CommandTexts& /*texts*/) {}
inline void share_settings(SingleOptions& /*options*/) {}

template <typename Options>
Options initial_options(const char* program, CommandTexts& texts) {
  Options options;
  options.record.stage = std::filesystem::path(program).filename().string();
  options.data.root = MNIST_DATA_ROOT;
  if (std::is_same_v<Options, AmpOptions>) texts.save_path = "ddp_checkpoint.safetensors";
  if constexpr (requires { options.process_group; }) {
    options.process_group.program = program;
    texts.timeout_seconds = options.process_group.timeout.count() / 1000;
  }
  return options;
}

template <typename Options>
CommandLine<Options> parse_command_line(int argc, const char* const* argv) {
  CommandTexts texts;
  auto options = initial_options<Options>(argv[0], texts);
  Flags flags(options.record.stage);
  add_flags(flags, options, texts);
  flags.app().set_version_flag(
      "--version", [&] { return version_text(options.record.stage); },
      "print the versions of all libraries");
  try {
    flags.parse(argc, argv);
    apply_presets(flags, options, texts);
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, flags.app().help()};
  } catch (const CLI::CallForVersion& version) {
    return {std::nullopt, version.what()};
  } catch (const CLI::ParseError& error) {
    const std::string problem = error.what();
    const bool is_twice = problem.find("At Most") != problem.npos;
    throw UsageError::conflict(options.record.stage, problem,
                               is_twice ? "give each flag once" : "--help lists all flags");
  }
  complete(options, flags, texts);
  check_files(options, texts.files_read());
  share_settings(options);
  return {options, ""};
}

}  // namespace mnist
