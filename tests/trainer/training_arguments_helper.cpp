// SPDX-License-Identifier: Apache-2.0
//
// What the library makes of training arguments, as JSON on standard output, for the tests that
// compare it with the Python package:
//
//     training_arguments_helper tables       all defaults; names and defaults of unsupported
//     arguments training_arguments_helper read FILE    what the file says training_arguments_helper
//     resolve FILE the same, completed and checked
//
// A refusal is its message on standard error, and the exit code of its error.
#include <fmt/core.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/trainer/argument_table.h"
#include "ladder/trainer/training_arguments.h"

namespace ladder {
namespace {

using Json = nlohmann::ordered_json;

Json tables() {
  Json unsupported = Json::object();
  for (const auto& row : unsupported_argument_table())
    unsupported[row.name] = Json::parse(row.default_json);
  Json deprecated = Json::object();
  for (const auto& name : deprecated_names()) deprecated[name.old] = name.now;
  return {{"arguments", to_json({})}, {"unsupported", unsupported}, {"deprecated", deprecated}};
}

Json read(const std::string& path, bool completed) {
  std::vector<std::string> notes;
  auto arguments = read_training_arguments(path, &notes);
  if (completed) {
    for (const auto& note : resolve(arguments)) notes.push_back(note);
  }
  return {{"arguments", to_json(arguments)}, {"notes", notes}};
}

int run(const std::vector<std::string>& arguments) {
  try {
    const std::string command = arguments.empty() ? "" : arguments[0];
    const Json json = command == "tables" ? tables() : read(arguments.at(1), command == "resolve");
    fmt::print("{}\n", json.dump());
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}

}  // namespace
}  // namespace ladder

int main(int argc, char** argv) { return ladder::run({argv + 1, argv + argc}); }
