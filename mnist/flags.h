// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/text.h"
#include "ladder/monitor/run_settings.h"

namespace mnist {

using ladder::Effect, ladder::RunSettings, ladder::UsageError;

// For mnist/ alone: the flags of a program, on CLI11. It splits the command line and prints --help.
// Values are read here: CLI11 takes 010 for 8, 2^64 for 2^63 - 1, and rounds a double twice.

constexpr const char* kHelpHint = "--help shows the default";

template <typename Number>
Number number_of(const std::string& flag, const std::string& text, const char* form) {
  const auto value = ladder::parse_number<Number>(text);
  if (!value) throw UsageError::malformed(flag, form, text, kHelpHint);
  return *value;
}

struct Range {
  std::int64_t minimum;
  std::int64_t maximum = std::numeric_limits<std::int64_t>::max();
};

inline bool is_whole_number(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

inline std::int64_t integer_in(Range range, const std::string& flag, const std::string& text,
                               const char* form = "a whole number") {
  const auto number = ladder::parse_number<std::int64_t>(text);
  if (number && *number >= range.minimum && *number <= range.maximum) return *number;
  if (!is_whole_number(text)) throw UsageError::malformed(flag, form, text, kHelpHint);
  const bool is_small = text.starts_with('-') || (number && *number < range.minimum);
  const auto allowed = is_small ? fmt::format("a number >= {}", range.minimum)
                                : fmt::format("{} to {}", range.minimum, range.maximum);
  throw UsageError::conflict(flag, fmt::format("expected {}, got {}", allowed, text), kHelpHint);
}

// The text of a value for --help and the record; `unset` stands for an optional without one.
template <typename Value>
std::string shown(const Value& value, const std::string& /*unset*/) {
  return fmt::format("{}", value);
}
template <typename Value>
std::string shown(const std::optional<Value>& value, const std::string& unset) {
  return value ? fmt::format("{}", *value) : unset;
}

// Each flag reads its text and writes its value back, so that --help, the errors and the record of
// a run come from one place. `names` are in the form of CLI11, "-e,--epochs"; messages and the
// record have the first long one. `unset`: see shown.
class Flags {
 public:
  using Read = std::function<void(const std::string& flag, const std::string& value)>;
  using Write = std::function<std::string()>;

  explicit Flags(const std::string& program) : app_("", program) {
    app_.allow_extras();  // unknown flags are refused below, with the nearest name
    app_.get_formatter()->column_width(36);
  }

  CLI::App& app() { return app_; }

  // A value of any kind. --help shows `write()` as the default, unless it is `unset`. `alone`: the
  // value of the flag without one; empty = a value must follow.
  CLI::Option* value(Effect effect, const std::string& names, const std::string& form,
                     const std::string& help, Read read, Write write, const std::string& unset = "",
                     const std::string& alone = "") {
    const std::string flag = long_name(names);
    auto* option = app_.add_option_function<std::string>(
        names, [=](const std::string& text) { read(flag, text.empty() ? alone : text); }, help);
    option->type_name(form);
    // Without a value, CLI11 would take the default.
    if (!alone.empty())
      option->expected(0, 1);
    else if (write() != unset)
      option->option_text(form + "=" + write());  // as no release of CLI11 alone writes it
    values_.push_back({flag, std::move(write), effect});
    return option;
  }

  CLI::Option* text(Effect effect, const std::string& names, std::string& target,
                    const std::string& form, const std::string& help) {
    const auto read = [&target, form](const std::string& flag, const std::string& value) {
      if (form.starts_with("PATH") || form == "FOLDER") ladder::require_path(flag, value);
      target = value;
    };
    return value(effect, names, form, help, read, [&target] { return target; });
  }

  // A path that may be omitted: the flag alone leaves `target` empty.
  CLI::Option* optional_path(Effect effect, const std::string& names, std::string& target,
                             const std::string& help, const char* type = "PATH") {
    return text(effect, names, target, type, help)->expected(0, 1);
  }

  template <typename Target>  // an integer type, or std::optional of one
  CLI::Option* integer(Effect effect, const std::string& names, Target& target, Range range,
                       const std::string& help, const std::string& unset = "") {
    using Integer = typename CLI::detail::wrapped_type<Target, Target>::type;
    if (!std::in_range<Integer>(range.maximum)) {
      range.maximum = static_cast<std::int64_t>(std::numeric_limits<Integer>::max());
    }
    const auto read = [&target, range](const std::string& flag, const std::string& value) {
      target = static_cast<Integer>(integer_in(range, flag, value));
    };
    return value(
        effect, names, "N", help, read, [&target, unset] { return shown(target, unset); }, unset);
  }

  // One of several names, each of which stands for a value. The name of the present value is the
  // default; if there is none, the record has `unset`.
  template <typename Value>
  using Named = std::vector<std::pair<std::string, std::type_identity_t<Value>>>;
  template <typename Value>
  CLI::Option* choice(Effect effect, const std::string& names, Value& target,
                      const Named<Value>& values, const std::string& help,
                      const std::string& unset = "") {
    std::vector<std::string> choices;
    auto state = std::make_shared<std::string>(unset);
    for (const auto& [name, value] : values) {
      if (value == target && *state == unset) *state = name;
      choices.push_back(name);
    }
    const auto read = [=, &target](const std::string& flag, const std::string& text) {
      const auto found = std::find(choices.begin(), choices.end(), text);
      if (found == choices.end()) throw UsageError::unknown_name(flag, text, choices);
      target = values[static_cast<std::size_t>(found - choices.begin())].second;
      *state = text;
    };
    return value(
        effect, names, fmt::format("{}", fmt::join(choices, "|")), help, read,
        [state] { return *state; }, unset);
  }

  // The same where the value is the name.
  CLI::Option* one_of(Effect effect, const std::string& names, std::string& target,
                      const std::vector<std::string>& choices, const std::string& help) {
    Named<std::string> values;
    for (const auto& name : choices) values.emplace_back(name, name);
    return choice(effect, names, target, values, help);
  }

  // "--NAME", or "--NAME,!--no-NAME"; "--NAME=false" too. `Bool`: bool or std::optional<bool>.
  template <typename Bool>
  CLI::Option* flag(Effect effect, const std::string& names, Bool& target, const std::string& help,
                    const std::string& unset = "") {
    const std::string name = long_name(names);
    const auto check = [name](std::string& value) {
      value = ladder::parse_bool(name, value) ? "true" : "false";
      return std::string();  // no error
    };
    values_.push_back({name, [&target, unset] { return shown(target, unset); }, effect});
    return app_
        .add_flag_function(
            names, [&target](std::int64_t count) { target = count > 0; }, help)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->transform(CLI::Validator(check, ""));
  }

  // A flag that --help, the record and the hints omit. Without a value it means true.
  void unlisted(const std::string& name, const Read& read) {
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

  // Every flag with its value, for the record.
  std::vector<std::pair<std::string, std::string>> values() const {
    std::vector<std::pair<std::string, std::string>> result;
    for (const auto& value : values_) result.emplace_back(value.flag, value.write());
    return result;
  }

  // The same with their effects. `resolved`: the values of flags that the record shows as unset,
  // where a default stands for them.
  RunSettings settings(const std::map<std::string, std::string>& resolved = {}) const {
    RunSettings result;
    for (const auto& value : values_) {
      const auto known = resolved.find(value.flag);
      result.push_back(
          {value.flag, known == resolved.end() ? value.write() : known->second, value.effect});
    }
    return result;
  }

 private:
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

  struct Value {
    std::string flag;
    Write write;
    Effect effect;
  };
  struct Spelling {
    std::string now;
    std::function<void()> when_used;
  };

  CLI::App app_;
  std::map<std::string, Spelling> spellings_;
  std::vector<Value> values_;
};

}  // namespace mnist
