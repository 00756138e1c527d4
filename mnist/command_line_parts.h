// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "mnist/command_line.h"
#include "mnist/flags.h"
#include "mnist/option_tables.h"
#include "mnist/options.h"

namespace mnist {

// For mnist/ alone: what the command lines of all stages share. Each stage has four functions,
// which parse_command_line calls in this order:
//
//     add_flags        its tables of options, in the order of --help
//     apply_presets    flags that a profile or a file sets
//     complete         rules of several flags, and what follows from flags
//     share_settings   the settings that the ranks compare

// Options that decide about others; see text_table.
struct CommandTexts {
  std::string profile = "none";
  std::string hparams;
  std::string args_file;    // JSON or YAML; empty = none
  bool pin_memory = false;  // the flag is given, whatever the default of the training argument
};

void add_flags(Flags& flags, SingleOptions& options, CommandTexts& texts);
void add_shared_flags(Flags& flags, SingleOptions& options);
void add_rank_flags(Flags& flags, GroupOptions& options, SumOptions& sums);
void complete_group(GroupOptions& options, bool require_launcher);
void complete_all(SingleOptions& options, const Flags& flags);
void share_settings(GroupOptions& options);
std::string version_text(const std::string& program);

// Rules of stages that have --sums.
inline bool in_micro_batches(const SumOptions& options) {
  return options.replicate.in_micro_batches();
}
template <typename Options>
constexpr ladder::Rule<Options> kNoMicroBatches = {
    "--micro-batch",
    [](const Options& o) {
      return !in_micro_batches(o) && o.replicate.micro_batch != Options().replicate.micro_batch;
    },
    "sums in float have no micro-batches", "add --sums exact"};
// Ranks draw masks of PyTorch's generator in turn, each for its own samples.
template <typename Options>
constexpr ladder::Rule<Options> kMasksByPosition = {
    "--sums exact",
    [](const Options& o) {
      const bool is_reference = o.recipe.name == "basicnet" && o.recipe.math == Math::kReference;
      return in_micro_batches(o) && (is_reference || !o.recipe.network.empty());
    },
    "with --math reference and with --network the dropout masks depend on the number of ranks",
    "add --math fast, without --network"};

inline void apply_presets(Flags& /*flags*/, SingleOptions& /*options*/, CommandTexts& /*texts*/) {}
inline void share_settings(SingleOptions& /*options*/) {}

template <typename Options>
Options initial_options(const char* program) {
  Options options;
  options.record.stage = std::filesystem::path(program).filename().string();
  options.data.root = MNIST_DATA_ROOT;
  if constexpr (requires { options.process_group; }) options.process_group.program = program;
  return options;
}

template <typename Options>
CommandLine<Options> parse_command_line(int argc, const char* const* argv) {
  CommandTexts texts;
  auto options = initial_options<Options>(argv[0]);
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
  auto files = flags.files();
  if (options.monitor.fingerprint != 0 && !options.record.metrics.ends_with(".jsonl")) {
    files.push_back(
        {"--fingerprint", options.record.metrics + ".jsonl", ladder::PathRole::kWritten});
  }
  require_distinct_files(std::move(files));
  share_settings(options);
  return {options, ""};
}

}  // namespace mnist
