// SPDX-License-Identifier: Apache-2.0
//
// What the library makes of a file or of its environment, as JSON on standard output, for the tests
// that compare it with the Python package:
//
//     accelerate_helper resolve [--config_file F] [--mixed_precision P]
//                               [--gradient_accumulation_steps N] [--cpu]
//     accelerate_helper track FOLDER
//
// A refusal is its message on standard error, and the exit code of its error.
#include <fmt/core.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/accelerate/trackers.h"
#include "ladder/core/error.h"
#include "ladder/launch/launch_environment.h"

namespace ladder {
namespace {

using Arguments = std::vector<std::string>;
using Json = nlohmann::ordered_json;

const char* name_of(DistributedType type) {
  if (type == DistributedType::kMultiGpu) return "MULTI_GPU";
  return type == DistributedType::kMultiCpu ? "MULTI_CPU" : "NO";
}

AccelerateSources sources_of(const Arguments& arguments) {
  AccelerateSources sources{.environment = read_accelerate_environment()};
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& flag = arguments[i];
    if (flag == "--cpu") {
      sources.options.use_cpu = true;
    } else if (flag == "--config_file") {
      sources.file = read_config_file(arguments.at(++i));
    } else if (flag == "--mixed_precision") {
      sources.options.mixed_precision = parse_mixed_precision(flag, arguments.at(++i));
    } else {
      sources.options.gradient_accumulation_steps = std::stoi(arguments.at(++i));
    }
  }
  return sources;
}

void resolve(const Arguments& arguments) {
  const auto config = resolve_accelerate_config(sources_of(arguments));
  const auto launch = read_launch_environment({.needs_address = false});
  const Json json = {{"mixed_precision", mixed_precision_name(config.mixed_precision)},
                     {"gradient_accumulation_steps", config.gradient_accumulation_steps},
                     {"use_cpu", config.use_cpu},
                     {"debug", config.debug},
                     {"device", config.device},
                     {"fork_launched", config.fork_launched},
                     {"distributed_type", name_of(config.distributed_type)},
                     {"num_processes", config.num_processes.value_or(-1)},
                     {"num_machines", config.num_machines},
                     {"machine_rank", config.machine_rank},
                     {"main_process_ip", config.main_process_ip},
                     {"main_process_port", config.main_process_port.value_or(-1)},
                     {"gpu_ids", config.gpu_ids},
                     {"notes", config.notes},
                     {"launcher", launch.launcher},
                     {"rank", launch.rank},
                     {"world_size", launch.world_size}};
  fmt::print("{}\n", json.dump());
}

// A run of 60 steps, and its resume from a checkpoint of step 50.
void track(const Arguments& arguments) {
  for (const std::int64_t begin : {0, 50}) {
    Trackers trackers({.log_with = {"all"}, .logging_dir = arguments.at(1), .append = begin > 0});
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

int run(const Arguments& arguments) {
  try {
    const std::string command = arguments.empty() ? "" : arguments[0];
    if (command == "resolve") resolve(arguments);
    if (command == "track") track(arguments);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}

}  // namespace
}  // namespace ladder

int main(int argc, char** argv) { return ladder::run({argv + 1, argv + argc}); }
