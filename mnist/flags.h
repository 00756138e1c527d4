// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/text.h"
#include "ladder/io/option_table.h"
#include "mnist/named_files.h"

namespace mnist {

using ladder::Effect, ladder::Option, ladder::OptionColumns, ladder::RunSettings,
    ladder::UsageError;

// For mnist/ alone: the flags of a program, from tables of options, on CLI11. It splits the command
// line and prints --help. Values are read by the table: CLI11 takes 010 for 8, 2^64 for 2^63 - 1,
// and rounds a double twice.

// Further names of flags. Where a training argument has the name of another option, as --epochs,
// that option takes the value of the argument.
constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kAliases = {
    {{"epochs", "-e"},
     {"batch_size", "-b"},
     {"gpu", "--gpu-ids"},
     {"nprocs", "--num-processes"},
     {"mixed_precision", "--precision"},
     {"resume", "--resume-from-checkpoint"},
     {"num_train_epochs", "-e,--epochs"},
     {"per_device_train_batch_size", "-b,--batch-size"},
     {"per_device_eval_batch_size", "--eval-batch-size"},
     {"learning_rate", "--lr"},
     {"dataloader_num_workers", "--num-workers"},
     {"dataloader_pin_memory", "--pin-memory"},
     {"ddp_backend", "--backend"},
     {"ddp_timeout", "--timeout"},
     {"resume_from_checkpoint", "--resume"}}};

// "--learning-rate" of learning_rate.
inline std::string flag_of(std::string_view name) {
  std::string flag = fmt::format("--{}", name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

class Flags {
 public:
  explicit Flags(const std::string& program) : app_("", program) {
    app_.allow_extras();  // unknown flags are refused below, with the nearest name
    app_.get_formatter()->column_width(36);
  }

  CLI::App& app() { return app_; }

  // A flag for each option of the table, which reads its value into `target`.
  template <typename S>
  void add(const auto& table, S& target, const std::string& group = "Options") {
    for (const auto& row : table) {
      const auto read = [&row, &target](const std::string& where, const nlohmann::json& value) {
        row.read(target, where, value);
      };
      add({flag_of(row.name), &row, read, [&row, &target] { return row.write(target); }}, group);
    }
  }

  // A flag that --help, the record and the hints omit. Without a value it means true.
  void unlisted(const std::string& name,
                const std::function<void(const std::string&, const std::string&)>& read) {
    app_.add_option_function<std::string>(
            name, [=](const std::string& text) { read(name, text.empty() ? "true" : text); })
        ->expected(0, 1)
        ->group("");
  }

  // On the command line `old` means `now`, which may contain a value: --no-a means --a=false.
  void spelling(const std::string& old, const std::string& now,
                std::function<void()> when_used = {}) {
    spellings_[old] = {now, std::move(when_used)};
  }

  bool given(const std::string& flag) const { return app_.count(flag) > 0; }

  bool has(const std::string& flag) const { return app_.get_option_no_throw(flag) != nullptr; }

  // The flag's own name, for any of its names.
  std::string own_name(const std::string& flag) const {
    return "--" + app_.get_option(flag)->get_lnames().front();
  }

  // Sets a flag that is not on the command line. `where` begins messages.
  void preset(const std::string& flag, std::string value, const std::string& where) {
    auto* option = app_.get_option(flag);
    if (option->count() > 0) return;
    if (option->get_expected_min() == 0 && option->get_items_expected_max() == 0) {
      const bool negated = flag.starts_with("--no-");
      value = ladder::parse_bool(where, value) != negated ? "true" : "false";
    }
    option->add_result(value);
    option->run_callback();
  }

  void parse(int argc, const char* const* argv) {
    app_.parse(arguments_with_dashes(argc, argv));
    const auto unknown = app_.remaining();
    if (unknown.empty()) return;
    const auto flag = unknown.front().substr(0, unknown.front().find('='));
    throw unknown_flag(unknown.front(), flag);
  }

  // For a flag that the program does not have; `where` begins the message, the hint names the
  // nearest flag.
  UsageError unknown_flag(const std::string& where, const std::string& flag) const {
    const std::string nearest = ladder::nearest_name(flag, all_names());
    const std::string proposal = nearest.empty() ? "" : fmt::format("did you mean {}? ", nearest);
    return UsageError::conflict(where, "no such option", proposal + "--help lists them all");
  }

  // Options whose flag another option has take its value. A part of an epoch is one.
  void share() const {
    for (const auto& own : shared_) {
      auto value = find(app_.get_option(own.flag)->get_lnames().front()).write();
      if (own.row->value == "N" && value.is_number_float()) {
        value = static_cast<std::int64_t>(std::ceil(value.get<double>()));
      }
      own.read(own.flag, value);
    }
  }

  // Every flag with its value and effect.
  RunSettings settings() const {
    RunSettings result;
    for (const auto& flag : flags_) {
      result.push_back({flag.flag, ladder::text_of(flag.write()), flag.row->effect});
    }
    return result;
  }

  // What the flags name, for require_distinct_files.
  std::vector<NamedFile> files() const {
    std::vector<NamedFile> result;
    for (const auto& flag : flags_) {
      const auto& details = flag.row->details;
      if (details.role == ladder::PathRole::kNone) continue;
      result.push_back({flag.flag, ladder::text_of(flag.write()), details.role, details.files});
    }
    return result;
  }

 private:
  struct Flag {
    std::string flag;
    const OptionColumns* row;
    std::function<void(const std::string& where, const nlohmann::json& value)> read;
    std::function<ladder::WrittenJson()> write;
  };
  struct Spelling {
    std::string now;
    std::function<void()> when_used;
  };

  void add(const Flag& flag, const std::string& group) {
    if (has(flag.flag)) return shared_.push_back(flag);
    flags_.push_back(flag);
    std::string names = flag.flag;
    for (const auto& [name, more] : kAliases) {
      if (name == flag.row->name) names += fmt::format(",{}", more);
    }
    auto* const option = flag.row->value.empty() ? add_alone(flag, names) : add_value(flag, names);
    option->group(group);
  }

  // "--NAME", and "--no-NAME" unless it is false by default; "--NAME=false" too.
  CLI::Option* add_alone(const Flag& flag, std::string names) {
    const auto check = [name = flag.flag](std::string& value) {
      value = ladder::parse_bool(name, value) ? "true" : "false";
      return std::string();  // no error
    };
    if (flag.write() != false) names += ",!--no" + flag.flag.substr(1);
    const auto read = [flag](std::int64_t count) { flag.read(flag.flag, count > 0); };
    return app_.add_flag_function(names, read, std::string(flag.row->help))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->transform(CLI::Validator(check, ""));
  }

  CLI::Option* add_value(const Flag& flag, const std::string& names) {
    const auto& row = *flag.row;
    const std::string alone = row.details.alone == nullptr ? "" : row.details.alone;
    const std::string standard = ladder::text_of(flag.write());
    std::string help(row.help);
    if (row.value == "true|false") {
      const std::string no = "--no" + flag.flag.substr(1);
      if (standard == "true") help += fmt::format(" [yes; {}]", no);
      spelling(no, flag.flag + "=false");
    }
    const auto read = [=](const std::string& text) {
      flag.read(flag.flag, text.empty() ? alone : text);
    };
    auto* option = app_.add_option_function<std::string>(names, read, help);
    const std::string form(row.value);
    option->type_name(form);
    // Without a value, CLI11 would take the default.
    if (row.details.alone != nullptr)
      option->expected(0, 1);
    else if (!standard.empty())
      option->option_text(form + "=" + standard);  // as no release of CLI11 alone writes it
    return option;
  }

  const Flag& find(const std::string& long_name) const {
    return *std::ranges::find(flags_, "--" + long_name, &Flag::flag);
  }

  std::vector<std::string> all_names() const {
    std::vector<std::string> names = {"--help", "--version"};
    for (const auto* option : app_.get_options()) {
      if (option->get_group().empty()) continue;
      for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    }
    return names;
  }

  // Where a shell variable is empty, the next flag must not become the value.
  void require_value(const std::string& flag, const std::string& value) const {
    const auto* const option = app_.get_option_no_throw(flag);
    if (option == nullptr) return;
    const bool may_be_alone = option->get_expected_min() == 0;
    if (!value.empty() && (may_be_alone || !value.starts_with("--"))) return;
    throw UsageError::missing(flag, "a value", "is a shell variable empty? else omit " + flag);
  }

  // CLI11 takes the arguments last first.
  std::vector<std::string> arguments_with_dashes(int argc, const char* const* argv) const {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    std::string flag;  // to which an empty argument belongs
    for (auto& argument : arguments) {
      require_value(flag, argument);
      flag = argument;
      if (!argument.starts_with("--")) continue;
      const auto end = argument.begin() +
                       static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
      std::replace(argument.begin(), end, '_', '-');
      flag = argument;
      if (flag.ends_with('=')) require_value(flag.substr(0, flag.size() - 1), "");
      const auto found = spellings_.find(std::string(argument.begin(), end));
      if (found == spellings_.end()) continue;
      argument.replace(argument.begin(), end, found->second.now);
      if (found->second.when_used) found->second.when_used();
    }
    std::reverse(arguments.begin(), arguments.end());
    return arguments;
  }

  CLI::App app_;
  std::map<std::string, Spelling> spellings_;
  std::vector<Flag> flags_;
  std::vector<Flag> shared_;  // of options whose flag is one of flags_
};

}  // namespace mnist
