// SPDX-License-Identifier: Apache-2.0
#include "ladder/stage/run_options.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>

#include "ladder/checkpoint/atomic_file.h"
#include "ladder/core/error.h"
#include "ladder/core/versions.h"

namespace ladder {
namespace {

template <typename Number>
Number parse_number(const std::string& flag, const std::string& text, const char* form) {
  Number value{};
  const auto* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stopped != end) throw UsageError::malformed(flag, form, text);
  return value;
}

std::int64_t parse_integer(const std::string& flag, const std::string& text) {
  return parse_number<std::int64_t>(flag, text, "a whole number");
}

// The flags of a program. Each knows how to read its text and how to write its value back,
// so that --help, the errors and the record of a run come from one place.
class Flags {
 public:
  explicit Flags(const std::string& program) : app_("", program) {
    app_.allow_extras();  // unknown flags are refused below, with the nearest name
    app_.get_formatter()->column_width(36);
  }

  CLI::App& app() { return app_; }

  // `names` as CLI11 wants them, "-e,--epochs"; the last one is used in messages.
  CLI::Option* text(const std::string& names, std::string& target, const std::string& form,
                    const std::string& help) {
    const auto read = [&target, form](const std::string& flag, const std::string& value) {
      if (value.empty()) throw UsageError::missing(flag, form, "give a value, or leave it out");
      target = value;
    };
    return add(names, help, form, read, [&target] { return target; });
  }

  // A path that may stay out: the flag alone leaves `target` empty.
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

  // What the command line says counts; else this, as if it had been said.
  void preset(const std::string& flag, const std::string& value) {
    auto* option = app_.get_option(flag);
    if (option->count() > 0) return;
    option->add_result(value);
    option->run_callback();
  }

  void parse(int argc, const char* const* argv) {
    app_.parse(arguments_with_dashes(argc, argv));
    const auto unknown = app_.remaining();
    if (unknown.empty()) return;
    const std::string nearest = nearest_name(unknown.front(), all_names());
    const std::string proposal = nearest.empty() ? "" : fmt::format("did you mean {}? ", nearest);
    throw UsageError::conflict(unknown.front(), "no such option",
                               proposal + "--help lists them all");
  }

  // Every flag with its value in force, for the record.
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
      for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    }
    return names;
  }

  // CLI11 takes the arguments last first.
  static std::vector<std::string> arguments_with_dashes(int argc, const char* const* argv) {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    for (auto& argument : arguments) {
      if (!argument.starts_with("--")) continue;
      const auto end = argument.begin() +
                       static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
      std::replace(argument.begin(), end, '_', '-');
    }
    std::reverse(arguments.begin(), arguments.end());
    return arguments;
  }

  CLI::App app_;
  std::vector<std::pair<std::string, Write>> values_;
};

void add_recipe_flags(Flags& flags, RecipeOptions& recipe) {
  flags.choice(
      "--recipe", {"basicnet", "convnet"},
      [&recipe](const std::string& value) { recipe.name = value; }, recipe.name,
      "network, loss, optimizer and their defaults");
  flags.integer("-e,--epochs", recipe.epochs, "number of total epochs to run [1; convnet: 3]");
  flags.integer("-b,--batch-size", recipe.batch_size, "images a step [64; convnet: 32]");
  flags.integer("--eval-batch-size", recipe.eval_batch_size,
                "images a step of the evaluation [64; convnet: 32]");
  flags.number("--lr", recipe.lr, "learning rate [1e-3; convnet: 1e-4]");
  flags.choice(
      "--head", {"log-softmax", "logits"},
      [&recipe](const std::string& value) { recipe.head = value; }, "recipe",
      "what the network ends in [log-softmax; convnet: logits]");
  flags.toggle(
      "--normalize,!--no-normalize", [&recipe](bool value) { recipe.normalize = value; },
      "subtract mean 0.1307, divide by 0.3081 [yes; convnet: no]");
  flags.choice(
      "--math", {"fast", "reference"},
      [&recipe](const std::string& value) {
        recipe.math = value == "fast" ? Math::kFast : Math::kReference;
      },
      "fast", "reference: bit-equal to Python, slower");
  flags.choice(
      "--scheduler", {"none", "step"},
      [&recipe](const std::string& value) { recipe.scheduler = value; }, recipe.scheduler,
      "of the learning rate; step: a tenth of it every 30 epochs");
  flags.integer("--seed", recipe.seed, 0, "of weights, order, dropout and augmentation");
}

void add_data_flags(Flags& flags, RunOptions& options) {
  flags.text("--data-root", options.data_root, "FOLDER", "folder of the MNIST files");
  flags.integer("--limit-train", options.limit_train, 0, "use only the first N images; 0 = all");
  flags.integer("--limit-test", options.limit_test, 0, "test on the first N images; 0 = all");
  flags.choice(
      "--augment", {"none", "shift"},
      [&options](const std::string& value) { options.augment_shift = value == "shift"; }, "none",
      "move each training image by up to 2 pixels at random");
  flags.integer("--num-workers", options.num_workers, 0, "threads that prepare batches ahead");
  flags.on("--pin-memory", options.pin_memory, "page-locked batches, for copies to a GPU");
}

void add_machine_flags(Flags& flags, RunOptions& options, std::string& gpu) {
  flags.text("--device", options.device, "DEVICE", "auto, cpu, cuda or cuda:N");
  flags.text("--gpu,--gpu-ids", gpu, "IDS", "GPUs this program may see, such as 0,1");
  flags.integer("--threads", options.threads, 0, "threads of this process; 0 = choose");
}

void add_output_flags(Flags& flags, RunOptions& options, const StageFlags& stage) {
  const std::string name = stage.amp
                               ? "ddp_checkpoint.safetensors"
                               : "mnist_cnn.safetensors; convnet: origin_checkpoint.safetensors";
  flags.optional_path("--save", options.save, "write the weights as safetensors [" + name + "]");
  flags.text("--load", options.load, "PATH", "start from the weights in a file");
  flags.text("--metrics", options.record.metrics, "PATH", "write a record as JSON lines");
  flags.integer("--fingerprint", options.record.fingerprint, 0,
                "hash every N-th step into PATH.rank0.jsonl beside --metrics; 0 = never");
  flags.text("--trace", options.record.trace, "PATH",
             "record steps 4 to 8 as a Chrome trace, for ui.perfetto.dev");
  flags.on("--quiet", options.record.quiet, "print only the results");
}

void add_device_ids_flags(Flags& flags, RunOptions& options, std::string& device_ids) {
  flags.text("--device-ids", device_ids, "DEVICES",
             "of the replicas: 0,1 or cpu,cpu [all GPUs, else cpu,cpu]");
  flags.text("--output-device", options.output_device, "DEVICE",
             "where outputs are gathered [the first of --device-ids]");
}

void add_distributed_flags(Flags& flags, RunOptions& options, std::int64_t& timeout_seconds) {
  flags.choice(
      "--backend", {"auto", "gloo", "nccl"},
      [&options](const std::string& value) { options.process_group.backend = value; }, "auto",
      "who carries the gradients; auto: nccl with a GPU a rank");
  flags.integer("--timeout", timeout_seconds, 1, "seconds that a rank waits for the others");
  flags.choice(
      "--batch-mode", {"global", "per-device"},
      [&options](const std::string& value) {
        options.batch_mode = value == "global" ? BatchMode::kGlobal : BatchMode::kPerDevice;
      },
      "global", "is --batch-size that of all ranks together, or of each?");
  flags.choice(
      "--scale-lr", {"none", "linear", "sqrt"},
      [&options](const std::string& value) {
        if (value == "linear") options.recipe.scale_lr = LrScaling::kLinear;
        if (value == "sqrt") options.recipe.scale_lr = LrScaling::kSqrt;
      },
      "none", "raise the learning rate with the ranks, for per-device");
  flags.integer("--check-replicas", options.check_replicas, 0,
                "compare the weights of all ranks every N steps; 0 = never");
}

void add_spawn_flags(Flags& flags, RunOptions& options) {
  flags.integer("--nprocs", options.nprocs, 0, "processes to start; 0 = one a GPU, else 2");
  flags.integer("--master-port", options.master_port, 0, "where they meet; 0 = a free port");
}

void add_launcher_flags(Flags& flags, RunOptions& options) {
  flags.text("--init-method", options.process_group.init_method, "URL",
             "where the ranks meet: env://, tcp://HOST:PORT, file:///PATH");
  flags.optional_integer("--rank", options.process_group.rank, "of this process [as launched]");
  flags.optional_integer("--world-size", options.process_group.world_size,
                         "number of processes [as launched]");
}

void add_mixed_precision_flags(Flags& flags, RunOptions& options, std::string& profile) {
  flags.choice(
      "--precision", {"auto", "fp32", "bf16", "fp16"},
      [&options](const std::string& value) {
        if (value == "fp32") options.precision = Precision::kFp32;
        if (value == "bf16") options.precision = Precision::kBf16;
        if (value == "fp16") options.precision = Precision::kFp16;
      },
      "auto", "of convolutions and matrix products; auto: bf16 on the CPU, fp16 on a GPU");
  flags.on_or_off("sync-bn", options.sync_bn, "one BatchNorm over the batches of all ranks [yes]");
  flags.choice(
      "--profile", {"none", "ddp-practice"},
      [&profile](const std::string& value) { profile = value; }, profile,
      "the tutorial's run: convnet, 3 epochs, batch 32 per device, lr 1e-4");
}

// Flags that the command line holds count before those of a profile.
void apply_profile(Flags& flags, const std::string& profile) {
  if (profile != "ddp-practice") return;
  flags.preset("--recipe", "convnet");
  flags.preset("--epochs", "3");
  flags.preset("--batch-size", "32");
  flags.preset("--lr", "1e-4");
  flags.preset("--batch-mode", "per-device");
}

std::string default_save_path(const RunOptions& options, const StageFlags& stage) {
  if (stage.amp) return "ddp_checkpoint.safetensors";
  return options.recipe.name == "convnet" ? "origin_checkpoint.safetensors"
                                          : "mnist_cnn.safetensors";
}

std::vector<std::string> parse_devices(const std::string& list) {
  std::vector<std::string> devices;
  if (list.empty()) return devices;
  if (list.back() == ',') throw UsageError::malformed("--device-ids", "as 0,1 or cpu,cpu", list);
  for (const auto& item : CLI::detail::split(list, ',')) {
    devices.push_back(CLI::detail::trim_copy(item));
    if (devices.back().empty())
      throw UsageError::malformed("--device-ids", "as 0,1 or cpu,cpu", list);
  }
  return devices;
}

constexpr std::int64_t kLongestTimeout = 604'800;

std::chrono::seconds checked_timeout(std::int64_t seconds) {
  if (seconds > kLongestTimeout) {
    throw UsageError::out_of_range("--timeout", seconds, "1 to 604800, a week in seconds");
  }
  return std::chrono::seconds(seconds);
}

void complete_save_path(RunOptions& options, const StageFlags& stage, bool given) {
  if (given && options.save.empty()) options.save = default_save_path(options, stage);
  if (options.save.empty()) return;
  require_writable_folder("--save", options.save);
  if (options.save == options.record.metrics) {
    throw UsageError::conflict("--save", "names the same file as --metrics", "name two files");
  }
}

// As a person types it who has run ./run.
std::string torchrun_here() {
  const std::string own = ".venv/bin/torchrun";
  return std::filesystem::exists(own) ? own : "torchrun";
}

void check_together(const RunOptions& options) {
  if (options.recipe.scale_lr != LrScaling::kNone && options.batch_mode == BatchMode::kGlobal) {
    throw UsageError::conflict("--scale-lr",
                               "in global mode the batch does not grow with the ranks",
                               "add --batch-mode per-device, or leave --scale-lr out");
  }
  if (!options.device_ids.empty() && options.device != "auto") {
    throw UsageError::conflict("--device-ids", "--device names devices already",
                               "give one of them");
  }
}

std::vector<std::string> parse_gpus(const std::string& list) {
  std::vector<std::string> gpus;
  if (list.empty()) return gpus;
  for (const auto& item : CLI::detail::split(list, ',')) {
    const auto id = parse_number<unsigned>("--gpu", CLI::detail::trim_copy(item),
                                           "numbers separated by commas, as 0,1");
    gpus.push_back(fmt::format("{}", id));
  }
  return gpus;
}

std::string version_text(const std::string& program) {
  std::string text = program + "\n";
  auto versions = library_versions();
  versions.emplace_back("cli11", CLI11_VERSION);
  for (const auto& [name, version] : versions) text += fmt::format("  {:<14} {}\n", name, version);
  return text;
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv, const StageFlags& stage) {
  RunOptions options;
  options.record.stage = std::filesystem::path(argv[0]).filename().string();
  options.data_root = LADDER_DATA_ROOT;
  std::string gpu;
  std::string device_ids;
  std::string profile = "none";
  std::int64_t timeout_seconds = options.process_group.timeout.count() / 1000;
  bool version = false;
  Flags flags(options.record.stage);
  add_recipe_flags(flags, options.recipe);
  add_data_flags(flags, options);
  add_machine_flags(flags, options, gpu);
  add_output_flags(flags, options, stage);
  if (stage.device_ids) add_device_ids_flags(flags, options, device_ids);
  if (stage.distributed) add_distributed_flags(flags, options, timeout_seconds);
  if (stage.spawn) add_spawn_flags(flags, options);
  if (stage.launcher) add_launcher_flags(flags, options);
  if (stage.amp) add_mixed_precision_flags(flags, options, profile);
  flags.app().add_flag("--version", version, "print the versions of all libraries");
  try {
    flags.parse(argc, argv);
    if (stage.amp) apply_profile(flags, profile);
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, flags.app().help()};
  } catch (const CLI::ParseError& error) {
    throw UsageError::conflict(options.record.stage, error.what(), "--help lists all flags");
  }
  if (version) return {std::nullopt, version_text(options.record.stage)};
  options.gpu = parse_gpus(gpu);
  options.device_ids = parse_devices(device_ids);
  options.process_group.timeout = checked_timeout(timeout_seconds);
  options.process_group.require_launcher = stage.launcher && !stage.spawn;
  options.process_group.program = argv[0];
  options.process_group.torchrun = torchrun_here();
  check_together(options);
  complete_save_path(options, stage, flags.app().count("--save") > 0);
  if (!options.record.trace.empty()) require_writable_folder("--trace", options.record.trace);
  options.record.flags = flags.values();
  return {options, ""};
}

}  // namespace ladder
