// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/core/error.h"

namespace mnist {

using ladder::UsageError;

// For mnist/ alone: what the flags of all stages have in common.

template <typename Number>
Number parse_number(const std::string& flag, const std::string& text, const char* form) {
  Number value{};
  const auto* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stopped != end) throw UsageError::malformed(flag, form, text);
  return value;
}

inline std::int64_t parse_integer(const std::string& flag, const std::string& text) {
  return parse_number<std::int64_t>(flag, text, "a whole number");
}

// The flags of a program. Each reads its text and writes its value back, so that --help, the
// errors and the record of a run come from one place.
class Flags {
 public:
  explicit Flags(const std::string& program) : app_("", program) {
    app_.allow_extras();  // unknown flags are refused below, with the nearest name
    app_.get_formatter()->column_width(36);
  }

  CLI::App& app() { return app_; }

  // `names` in the form of CLI11, "-e,--epochs"; the last one is used in messages.
  CLI::Option* text(const std::string& names, std::string& target, const std::string& form,
                    const std::string& help) {
    const auto read = [&target, form](const std::string& flag, const std::string& value) {
      if (value.empty()) throw UsageError::missing(flag, form, "give a value, or leave it out");
      target = value;
    };
    return add(names, help, form, read, [&target] { return target; });
  }

  // A value of any kind. `alone`: the value of the flag without one; empty = a value must follow.
  CLI::Option* value(const std::string& names, const std::string& form, const std::string& help,
                     std::function<void(const std::string& flag, const std::string& value)> read,
                     std::function<std::string()> write, const std::string& alone = "") {
    if (alone.empty()) return add(names, help, form, std::move(read), std::move(write));
    const auto or_alone = [read = std::move(read), alone](const std::string& flag,
                                                          const std::string& value) {
      read(flag, value.empty() ? alone : value);
    };
    // CLI11 would take the default for the value that is not there.
    return add(names, help, form, or_alone, std::move(write))->expected(0, 1)->default_str("");
  }

  // A flag that --help, the record and the hints omit. Without a value it means true.
  void unlisted(const std::string& name,
                std::function<void(const std::string& flag, const std::string& value)> read) {
    app_.add_option_function<std::string>(name,
                                          [name, read = std::move(read)](const std::string& value) {
                                            read(name, value.empty() ? "true" : value);
                                          })
        ->expected(0, 1)
        ->group("");
  }

  // On the command line `old` means `now`, which may contain a value: --no-a means --a=false.
  void spelling(const std::string& old, const std::string& now,
                std::function<void()> when_used = {}) {
    spellings_[old] = {now, std::move(when_used)};
  }

  // A path that may be omitted: the flag alone leaves `target` empty.
  CLI::Option* optional_path(const std::string& names, std::string& target,
                             const std::string& help) {
    const auto read = [&target](const std::string&, const std::string& value) { target = value; };
    return add(names, help, "PATH", read, [&target] { return target; })->expected(0, 1);
  }

  CLI::Option* choice(const std::string& names, std::vector<std::string> choices,
                      std::function<void(const std::string&)> take, std::string standard,
                      const std::string& help) {
    const std::string form = fmt::format("{}", fmt::join(choices, "|"));
    auto state = std::make_shared<std::string>(std::move(standard));
    const auto read = [choices = std::move(choices), take = std::move(take), state](
                          const std::string& flag, const std::string& value) {
      if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
        throw UsageError::unknown_name(flag, value, choices);
      }
      take(value);
      *state = value;
    };
    return add(names, help, form, read, [state] { return *state; });
  }

  template <typename Integer>
  CLI::Option* integer(const std::string& names, Integer& target, std::int64_t minimum,
                       const std::string& help) {
    return add(
        names, help, "N",
        [&target, minimum](const std::string& flag, const std::string& value) {
          const std::int64_t number = parse_integer(flag, value);
          if (number < minimum || !std::in_range<Integer>(number)) {
            throw UsageError::out_of_range(flag, number, fmt::format("a number >= {}", minimum));
          }
          target = static_cast<Integer>(number);
        },
        [&target] { return fmt::format("{}", target); });
  }

  CLI::Option* integer(const std::string& names, std::optional<std::int64_t>& target,
                       const std::string& help) {
    return add(
        names, help, "N",
        [&target](const std::string& flag, const std::string& value) {
          target = parse_integer(flag, value);
        },
        [&target] { return target ? fmt::format("{}", *target) : "recipe"; });
  }

  CLI::Option* optional_integer(const std::string& names, std::optional<int>& target,
                                const std::string& help) {
    return add(
        names, help, "N",
        [&target](const std::string& flag, const std::string& value) {
          const std::int64_t number = parse_integer(flag, value);
          if (number < 0 || !std::in_range<int>(number)) {
            throw UsageError::out_of_range(flag, number, "a number >= 0");
          }
          target = static_cast<int>(number);
        },
        [&target] { return target ? fmt::format("{}", *target) : ""; });
  }

  CLI::Option* number(const std::string& names, std::optional<double>& target,
                      const std::string& help) {
    return add(
        names, help, "X",
        [&target](const std::string& flag, const std::string& value) {
          target = parse_number<double>(flag, value, "a number");
        },
        [&target] { return target ? fmt::format("{}", *target) : "recipe"; });
  }

  CLI::Option* toggle(const std::string& names, std::function<void(bool)> take,
                      const std::string& help) {
    auto state = std::make_shared<std::string>("recipe");
    const std::string flag = long_name(names);
    values_.emplace_back(flag, [state] { return *state; });
    return app_.add_flag_function(
        names,
        [take = std::move(take), state](std::int64_t count) {
          take(count > 0);
          *state = count > 0 ? "true" : "false";
        },
        help);
  }

  // --NAME and --no-NAME.
  CLI::Option* on_or_off(const std::string& name, bool& target, const std::string& help) {
    values_.emplace_back("--" + name, [&target] { return target ? "true" : "false"; });
    return app_.add_flag_function(
        fmt::format("--{0},!--no-{0}", name), [&target](std::int64_t count) { target = count > 0; },
        help);
  }

  CLI::Option* on(const std::string& names, bool& target, const std::string& help) {
    values_.emplace_back(long_name(names), [&target] { return target ? "true" : "false"; });
    return app_.add_flag(names, target, help);
  }

  bool given(const std::string& flag) const { return app_.count(flag) > 0; }

  bool has(const std::string& flag) const { return app_.get_option_no_throw(flag) != nullptr; }

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
    throw unknown_flag(unknown.front(), unknown.front());
  }

  // For a flag that the program does not have; `where` begins the message, the hint names the
  // nearest flag.
  UsageError unknown_flag(const std::string& where, const std::string& flag) const {
    const std::string nearest = ladder::nearest_name(flag, all_names());
    const std::string proposal = nearest.empty() ? "" : fmt::format("did you mean {}? ", nearest);
    return UsageError::conflict(where, "no such option", proposal + "--help lists them all");
  }

  // Every flag with its value, for the record.
  std::vector<std::pair<std::string, std::string>> values() const {
    std::vector<std::pair<std::string, std::string>> result;
    for (const auto& [flag, value] : values_) result.emplace_back(flag, value());
    return result;
  }

 private:
  using Read = std::function<void(const std::string& flag, const std::string& value)>;
  using Write = std::function<std::string()>;

  CLI::Option* add(const std::string& names, const std::string& help, const std::string& form,
                   Read read, Write write) {
    const std::string flag = long_name(names);
    auto* option = app_.add_option_function<std::string>(
        names, [flag, read = std::move(read)](const std::string& value) { read(flag, value); },
        help);
    option->type_name(form);
    const std::string standard = write();
    if (!standard.empty() && standard != "recipe") option->default_str(standard);
    values_.emplace_back(flag, std::move(write));
    return option;
  }

  static std::string long_name(const std::string& names) {
    const auto first = names.find("--");
    return names.substr(first, names.find_first_of(",!", first) - first);
  }

  std::vector<std::string> all_names() const {
    std::vector<std::string> names = {"--help", "--version"};
    for (const auto* option : app_.get_options()) {
      if (option->get_group().empty()) continue;
      for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    }
    return names;
  }

  // CLI11 takes the arguments last first.
  std::vector<std::string> arguments_with_dashes(int argc, const char* const* argv) const {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    for (auto& argument : arguments) {
      if (!argument.starts_with("--")) continue;
      const auto end = argument.begin() +
                       static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
      std::replace(argument.begin(), end, '_', '-');
      const auto found = spellings_.find(std::string(argument.begin(), end));
      if (found == spellings_.end()) continue;
      argument.replace(argument.begin(), end, found->second.now);
      if (found->second.when_used) found->second.when_used();
    }
    std::reverse(arguments.begin(), arguments.end());
    return arguments;
  }

  struct Spelling {
    std::string now;
    std::function<void()> when_used;
  };

  CLI::App app_;
  std::map<std::string, Spelling> spellings_;
  std::vector<std::pair<std::string, Write>> values_;
};

}  // namespace mnist
