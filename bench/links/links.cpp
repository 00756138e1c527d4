// SPDX-License-Identifier: Apache-2.0
// What two ranks pay for the link between them, as JSON lines of rank 0 on the standard output.
// links.py starts it on two nodes; a launcher's variables name rank, world size and meeting point.
//   build/bin/links --variants compute,plain          one process: no link
//   build/bin/links --all-reduce 4,65536              with RANK, WORLD_SIZE, MASTER_ADDR, ...
// All that is compared alternates, round after round, so that other load affects all alike.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/links/spans.h"
#include "bench/links/variants.h"
#include "ladder/comm/init_process_group.h"
#include "ladder/comm/sent_bytes.h"
#include "ladder/core/device.h"
#include "ladder/core/error.h"
#include "ladder/launch/exit_status.h"

namespace ladder::bench {
namespace {

using nlohmann::json;

constexpr int kWarmUpSteps = 3;  // DistributedDataParallel builds its buckets in the first
constexpr std::int64_t kSmallMessage = 100'000;  // bytes: below, a repeat is many calls
constexpr int kSmallRepeats = 20;
constexpr std::int64_t kSampleImages = 32;             // of a timed step
constexpr std::int64_t kGradientElements = 1'199'882;  // of BasicNet

struct LinksOptions {
  std::string backend = "gloo";
  std::string init_method = "env://";
  int timeout = 60;
  int rounds = 5;
  int steps = 10;
  int repeats = 5;
  std::vector<std::int64_t> all_reduce;
  std::vector<std::string> variants;
  std::vector<std::string> traces;
  std::vector<std::int64_t> images;
  std::vector<std::string> hooks;
  int samples = 0;
};

double seconds_since(Spans::Clock::time_point begin) {
  return std::chrono::duration<double>(Spans::Clock::now() - begin).count();
}

void print(const ProcessGroup& group, const json& line) {
  if (group.rank() != 0) return;
  const auto text = line.dump() + "\n";
  const bool is_printed =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!is_printed) throw SystemError::failed("write", "the standard output", errno);
}

// Seconds per call of `call`, which is repeated. The ranks begin together.
template <typename Call>
double seconds_per_call(const ProcessGroup& group, int repeats, const Call& call) {
  group.barrier();
  const auto begin = Spans::Clock::now();
  for (int i = 0; i < repeats; ++i) call();
  return seconds_since(begin) / repeats;
}

void measure_all_reduce(const ProcessGroup& group, const LinksOptions& options) {
  std::vector<torch::Tensor> tensors;
  for (const auto bytes : options.all_reduce) {
    tensors.push_back(torch::zeros({bytes / 4}));
    group.all_reduce(tensors.back());
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (auto& tensor : tensors) {
      const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
      const int repeats = options.repeats * (bytes < kSmallMessage ? kSmallRepeats : 1);
      const double seconds = seconds_per_call(group, repeats, [&] { group.all_reduce(tensor); });
      print(group, {{"part", "all-reduce"}, {"key", bytes}, {"seconds", seconds}});
    }
  }
}

// Seconds per backward: with accumulation, a step has several.
void measure_variants(const ProcessGroup& group, const LinksOptions& options) {
  std::vector<std::unique_ptr<VariantStep>> steps;
  for (const auto& name : options.variants) {
    steps.push_back(std::make_unique<VariantStep>(variant_of(name), group));
    for (int i = 0; i < kWarmUpSteps; ++i) steps.back()->run();
    print(group, {{"part", "messages"}, {"key", name}, {"bytes", steps.back()->message_bytes()}});
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (const auto& step : steps) {
      const int backwards = step->variant().accumulation;
      const int count = (options.steps + backwards - 1) / backwards;
      const auto before = sent_bytes();
      const double seconds = seconds_per_call(group, count, [&] { step->run(); });
      print(group, {{"part", "variant"},
                    {"key", step->variant().name},
                    {"seconds", seconds / backwards},
                    {"sent_bytes", (sent_bytes() - before) / (count * backwards)}});
    }
  }
}

void trace_variants(const ProcessGroup& group, const LinksOptions& options) {
  for (const auto& name : options.traces) {
    Spans spans;
    VariantStep step(variant_of(name), group, &spans);
    for (int i = 0; i < kWarmUpSteps; ++i) step.run();
    for (int i = 0; i < options.steps; ++i) {
      group.barrier();
      step.run();
      print(group, {{"part", "trace"}, {"key", name}, {"spans", spans.step()}});
    }
  }
}

// The time of a step by the images in it. All ranks compute, and send nothing.
void measure_images(const ProcessGroup& group, const LinksOptions& options) {
  struct Row {
    std::string key;
    std::unique_ptr<TrainingStep> step;
  };
  std::vector<Row> rows;
  for (const auto* recipe : {"basicnet", "convnet"}) {
    for (const auto images : options.images) {
      auto step = std::make_unique<TrainingStep>(
          TrainingStepOptions{.recipe = recipe, .batch_size = images});
      for (int i = 0; i < kWarmUpSteps; ++i) step->run();
      rows.push_back({.key = fmt::format("{}/{}", recipe, images), .step = std::move(step)});
    }
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (auto& row : rows) {
      const double seconds = seconds_per_call(group, options.steps, [&] { row.step->run(); });
      print(group, {{"part", "images"}, {"key", row.key}, {"seconds", seconds}});
    }
  }
}

// What a rank computes to send all gradients of BasicNet in another precision.
void measure_hooks(const ProcessGroup& group, const LinksOptions& options) {
  const auto bucket = torch::ones({kGradientElements});
  for (int round = 0; round < options.rounds; ++round) {
    for (const auto& name : options.hooks) {
      const auto hook = variant_of(name).comm_hook.value_or(allreduce_hook());
      const double seconds = seconds_per_call(group, options.steps, [&] {
        hook.decode(hook.encode(bucket, group.world_size())).to(bucket.scalar_type());
      });
      print(group, {{"part", "hook"}, {"key", name}, {"seconds", seconds}});
    }
  }
}

// The times of single steps, whose spread makes ranks wait for the slowest.
void measure_samples(const ProcessGroup& group, const LinksOptions& options) {
  if (options.samples == 0) return;
  TrainingStep step({.batch_size = kSampleImages});
  for (int i = 0; i < kWarmUpSteps; ++i) step.run();
  group.barrier();
  auto seconds = json::array();
  for (int i = 0; i < options.samples; ++i) {
    const auto begin = Spans::Clock::now();
    step.run();
    seconds.push_back(seconds_since(begin));
  }
  print(group, {{"part", "samples"}, {"key", kSampleImages}, {"seconds", seconds}});
}

void measure(const LinksOptions& options) {
  for (const auto& name : options.variants) variant_of(name);
  prepare_process({.requested = 1});
  const auto group =
      init_process_group({.backend = options.backend,
                          .init_method = options.init_method,
                          .timeout = std::chrono::seconds(options.timeout),
                          .device = "cpu",
                          .program = "build/bin/links",
                          .settings = {{"--variants", fmt::format("{}", options.variants)}}});
  print(group, {{"part", "group"}, {"key", group.backend()}, {"ranks", group.world_size()}});
  measure_all_reduce(group, options);
  measure_variants(group, options);
  trace_variants(group, options);
  measure_images(group, options);
  measure_hooks(group, options);
  measure_samples(group, options);
  group.barrier();
}

}  // namespace
}  // namespace ladder::bench

int main(int argc, char** argv) {
  ladder::bench::LinksOptions options;
  CLI::App app("Times two ranks and the link between them; links.py starts it.", "links");
  app.add_option("--backend", options.backend, "communication backend, gloo or shm (default gloo)");
  app.add_option("--init-method", options.init_method, "rendezvous (default env://)");
  app.add_option("--timeout", options.timeout, "seconds for each wait (default 60)")
      ->check(CLI::Range(1, 600));
  app.add_option("--rounds", options.rounds, "measurements of each row (default 5)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--steps", options.steps, "steps per measurement (default 10)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--repeats", options.repeats, "all-reduces per measurement (default 5)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--all-reduce", options.all_reduce, "sizes of all-reduces in bytes")
      ->delimiter(',')
      ->check(CLI::Range(4, 1'000'000'000));
  app.add_option("--variants", options.variants, "training loops to time")->delimiter(',');
  app.add_option("--traces", options.traces, "training loops to trace")->delimiter(',');
  app.add_option("--images", options.images, "images per step, without a link")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  app.add_option("--hooks", options.hooks, "variants whose CommHook is timed")->delimiter(',');
  app.add_option("--samples", options.samples, "steps to time one by one (default 0)")
      ->check(CLI::Range(0, 100'000));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return ladder::call_and_report([&] { ladder::bench::measure(options); });
}
