// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/accelerator_state.h"

#include <string>
#include <utility>

#include "ladder/amp/precision.h"
#include "ladder/comm/init_process_group.h"
#include "ladder/core/device.h"
#include "ladder/core/error.h"
#include "ladder/monitor/run_settings.h"

namespace ladder {
namespace {

constexpr Rule<AcceleratorOptions> kRules[] = {
    {"replicate.sums",
     [](const AcceleratorOptions& o) {
       return o.replicate.in_micro_batches() && o.data_loader.mode != LoaderMode::kGlobal;
     },
     "micro-batches need batches that do not depend on the number of processes",
     "set data_loader.mode to LoaderMode::kGlobal, in which the processes divide each batch"},
    {"fully_sharded",
     [](const AcceleratorOptions& o) {
       return o.fully_sharded && (o.zero_redundancy || o.replicate.in_micro_batches());
     },
     "zero_redundancy divides states already, and sums in micro-batches need whole gradients",
     "set fully_sharded alone"},
};

AcceleratorOptions with_present_names(AcceleratorOptions options) {
  if (!options.exact_sums || options.replicate.in_micro_batches()) return options;
  options.replicate = *options.exact_sums;
  options.replicate.sums = "exact";
  return options;
}

std::string device_request(const AcceleratorOptions& options, const AccelerateConfig& config) {
  if (config.use_cpu) return "cpu";
  return options.device == "auto" && !config.device.empty() ? config.device : options.device;
}

ProcessGroupOptions group_options(AcceleratorOptions options, const AccelerateConfig& config) {
  auto group = options.process_group;
  group.device = device_request(options, config);
  // A variable may set these on one rank alone.
  options.debug = config.debug;
  options.gradient_accumulation.num_steps = config.gradient_accumulation_steps;
  options.mixed_precision = config.mixed_precision;
  auto settings = settings_of_ranks(settings_of(accelerator_option_table(), options));
  settings["replicate.sums"] = options.replicate.sums;
  settings["fully_sharded"] = options.fully_sharded ? "yes" : "no";
  settings["replicate.micro_batch"] = std::to_string(options.replicate.sampler_micro_batch());
  settings.merge(group.settings);
  group.settings = std::move(settings);
  return group;
}

GradScalerOptions scaler_options(GradScalerOptions options, Precision precision) {
  options.enabled = options.enabled && precision == Precision::kFp16;
  return options;
}

}  // namespace

AcceleratorState::AcceleratorState(AcceleratorOptions given, AcceleratorHandlers given_handlers)
    : options(with_present_names(std::move(given))),
      handlers(std::move(given_handlers)),
      config(accelerate_config(options)),
      group(init_process_group(group_options(options, config))),
      log({.rank = group.rank(), .world_size = group.world_size(), .quiet = options.quiet}),
      threads(prepare_process(
          {.requested = options.threads, .local_world_size = group.local_world_size()})),
      device(choose_device(device_request(options, config), log, group.local_rank())),
      scaler(std::make_shared<GradScaler>(scaler_options(handlers.scaler, config.mixed_precision))),
      gradients(std::make_shared<GradientState>(
          config.gradient_accumulation_steps, options.gradient_accumulation.sync_with_dataloader)) {
  for (const auto& note : config.notes) log.info(note);
  require_rules(kRules, options);
  auto& checks = handlers.ddp.check_replicas;
  if (checks == 0) checks = options.replicate.check_replicas;
  choose_precision(config.mixed_precision, device, log);
}

}  // namespace ladder
