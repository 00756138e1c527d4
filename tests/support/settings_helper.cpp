// SPDX-License-Identifier: Apache-2.0
//
// What the library makes of a file or of its environment, as JSON on standard output, for the tests
// that compare it with a Python package:
//
//     settings_helper resolve [--config_file F] [--mixed_precision P]
//                             [--gradient_accumulation_steps N] [--cpu]
//     settings_helper track FOLDER
//     settings_helper tables          default training arguments; names and defaults of unsupported
//     settings_helper read FILE       its training arguments
//     settings_helper complete FILE   the same, completed and checked
//
// A refusal is its message on standard error, and the exit code of its error.
#include <fmt/core.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/core/error.h"
#include "ladder/observe/trackers.h"
#include "ladder/trainer/argument_table.h"
#include "ladder/trainer/training_arguments.h"

namespace ladder {
namespace {

using Arguments = std::vector<std::string>;
using Json = nlohmann::ordered_json;

AcceleratorOptions options_of(const Arguments& arguments) {
  AcceleratorOptions options;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& flag = arguments[i];
    if (flag == "--cpu") {
      options.cpu = true;
    } else {
      find_option(accelerator_option_table(), flag.substr(2))
          ->read(options, flag, arguments.at(++i));
    }
  }
  return options;
}

Json resolve_config(const Arguments& arguments) {
  const auto config = accelerate_config(options_of(arguments));
  const char* const types[] = {"NO", "MULTI_CPU", "MULTI_GPU"};
  return {{"mixed_precision", mixed_precision_name(config.mixed_precision)},
          {"gradient_accumulation_steps", config.gradient_accumulation_steps},
          {"use_cpu", config.use_cpu},
          {"debug", config.debug},
          {"device", config.device},
          {"fork_launched", config.fork_launched},
          {"distributed_type", types[static_cast<int>(config.distributed_type)]},
          {"num_processes", config.num_processes.value_or(-1)},
          {"num_machines", config.num_machines},
          {"machine_rank", config.machine_rank},
          {"main_process_ip", config.main_process_ip},
          {"main_process_port", config.main_process_port.value_or(-1)},
          {"notes", config.notes}};
}

// A run of 60 steps, and its resume from a checkpoint of step 50.
void track(const std::string& folder) {
  for (const std::int64_t begin : {0, 50}) {
    Trackers trackers({.log_with = {"all"}, .logging_dir = folder, .append = begin > 0});
    trackers.start("basic", {{"lr", 0.001},
                             {"batch_size", 64},
                             {"recipe", "basicnet | \xc3\xa4"},
                             {"sync_bn", true},
                             {"save", nullptr}});
    for (std::int64_t step = begin; step < (begin == 0 ? 60 : 100); ++step) {
      trackers.log(
          {{"train/loss", 1.0 / static_cast<double>(step + 1)}, {"odd", step == 3 ? NAN : -1.5}},
          step);
    }
    if (begin > 0) trackers.finish();
  }
}

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

Json run(const Arguments& arguments) {
  const std::string& command = arguments.at(0);
  if (command == "resolve") return resolve_config(arguments);
  if (command == "tables") return tables();
  if (command != "track") return read(arguments.at(1), command == "complete");
  track(arguments.at(1));
  return {};
}

}  // namespace
}  // namespace ladder

int main(int argc, char** argv) {
  try {
    fmt::print("{}\n", ladder::run({argv + 1, argv + argc}).dump());
    return 0;
  } catch (const ladder::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
