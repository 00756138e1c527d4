// SPDX-License-Identifier: Apache-2.0
#include "ladder/train/run_record.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "ladder/checkpoint/state_dict.h"
#include "ladder/core/error.h"
#include "ladder/core/memory.h"
#include "ladder/core/versions.h"

namespace ladder {
namespace {

void print_line(const std::string& line) {
  if (line.empty()) return;
  const bool printed = std::fputs((line + '\n').c_str(), stdout) >= 0;
  if (!printed || std::fflush(stdout) != 0) {
    throw SystemError::write_failed("standard output", errno);
  }
}

std::int64_t parameter_count(const torch::nn::Module& model) {
  std::int64_t count = 0;
  for (const auto& parameter : model.parameters()) count += parameter.numel();
  return count;
}

double rate(std::int64_t samples, double seconds) {
  return seconds > 0.0 ? static_cast<double>(samples) / seconds : 0.0;
}

std::string with_thousands(std::int64_t number) {
  if (number < 1000) return fmt::format("{}", number);
  return fmt::format("{},{:03}", with_thousands(number / 1000), number % 1000);
}

}  // namespace

RunRecord::RunRecord(RunRecordOptions options, Recipe recipe)
    : options_(std::move(options)),
      recipe_(std::move(recipe)),
      started_(steady_seconds()),
      log_({.quiet = options_.quiet}) {
  if (options_.fingerprint != 0 && options_.metrics.empty()) {
    throw UsageError::missing("--fingerprint", "--metrics PATH.jsonl, to write beside it",
                              "add --metrics run.jsonl: the fingerprint goes to run.rank0.jsonl");
  }
  if (!options_.metrics.empty()) metrics_ = JsonLines(options_.metrics);
  if (options_.fingerprint != 0) {
    fingerprint_ = Fingerprint(Fingerprint::path_beside(options_.metrics, 0), options_.fingerprint,
                               /*rank=*/0);
  }
}

void RunRecord::begin(const RunSetup& setup, const torch::nn::Module& model) {
  setup_ = setup;
  loss_ = std::make_unique<LossMeter>(setup.device);
  const std::int64_t parameters = parameter_count(model);
  log_.info(fmt::format("{}: {} with {} parameters on {}, {} thread{} ({}), {}", options_.stage,
                        recipe_.name(), with_thousands(parameters), setup.device.str(),
                        setup.threads, setup.threads == 1 ? "" : "s", setup.threads_reason,
                        setup.data));
  write_header(parameters);
}

void RunRecord::write_header(std::int64_t parameters) {
  nlohmann::ordered_json versions;
  for (const auto& [name, version] : library_versions()) versions[name] = version;
  nlohmann::ordered_json flags;
  for (const auto& [name, value] : options_.flags) flags[name] = value;
  metrics_.write({{"record", "run"},
                  {"stage", options_.stage},
                  {"recipe", recipe_.name()},
                  {"world_size", 1},
                  {"rank", 0},
                  {"device", setup_.device.str()},
                  {"threads", setup_.threads},
                  {"parameters", parameters},
                  {"data", setup_.data},
                  {"train_size", setup_.train_size},
                  {"test_size", setup_.test_size},
                  {"epochs", recipe_.epochs()},
                  {"batch_size", recipe_.batch_size()},
                  {"eval_batch_size", recipe_.eval_batch_size()},
                  {"lr", recipe_.lr()},
                  {"head", recipe_.head() == Head::kLogits ? "logits" : "log-softmax"},
                  {"math", recipe_.math() == Math::kFast ? "fast" : "reference"},
                  {"mean", recipe_.normalization().mean},
                  {"std", recipe_.normalization().std},
                  {"seed", recipe_.seed()},
                  {"options", flags},
                  {"versions", versions}});
}

void RunRecord::begin_epoch(std::int64_t epoch) {
  epoch_ = epoch;
  epoch_steps_ = 0;
  epoch_samples_ = 0;
  if (!options_.quiet) print_line(recipe_.epoch_line(epoch));
  loss_->begin_epoch(epoch);
  progress_ = std::make_unique<Progress>(
      ProgressOptions{.total = setup_.epoch_steps,
                      .label = fmt::format("epoch {}/{}", epoch, recipe_.epochs()),
                      .enabled = !options_.quiet,
                      .terminal = is_terminal(stderr)});
  epoch_started_ = steady_seconds();
}

void RunRecord::step(const Batch& batch, const torch::Tensor& loss,
                     const torch::nn::Module& model) {
  ++steps_;
  ++epoch_steps_;
  epoch_samples_ += batch.size();
  fingerprint_.record(steps_, batch, loss, model);
  loss_->add(loss, batch, steps_);
  progress_->update(epoch_steps_, epoch_samples_, loss_->last());
}

void RunRecord::end_epoch() {
  loss_->flush();
  progress_->finish();
  const double seconds = steady_seconds() - epoch_started_;
  train_seconds_ += seconds;
  samples_ += epoch_samples_;
  metrics_.write({{"record", "epoch"},
                  {"epoch", epoch_},
                  {"steps", epoch_steps_},
                  {"samples", epoch_samples_},
                  {"train_loss", loss_->mean()},
                  {"seconds", seconds},
                  {"samples_per_second", rate(epoch_samples_, seconds)}});
}

void RunRecord::begin_testing() {
  if (!options_.quiet) print_line(recipe_.testing_line());
}

void RunRecord::finish(const Evaluation& total, const torch::nn::Module& model) {
  print_line(recipe_.accuracy_line(total.accuracy()));
  const double seconds = steady_seconds() - started_;
  print_line(fmt::format("time elapsed: {:.2f} seconds", seconds));
  metrics_.write({{"record", "result"},
                  {"stage", options_.stage},
                  {"recipe", recipe_.name()},
                  {"world_size", 1},
                  {"precision", "fp32"},
                  {"device", setup_.device.str()},
                  {"epochs", recipe_.epochs()},
                  {"steps", steps_},
                  {"accuracy", total.accuracy()},
                  {"correct", total.correct},
                  {"seen", total.seen},
                  {"train_loss", loss_->mean()},
                  {"eval_loss", total.mean_loss()},
                  {"train_seconds", train_seconds_},
                  {"total_seconds", seconds},
                  {"samples_per_second", rate(samples_, train_seconds_)},
                  {"peak_rss_bytes", peak_rss_bytes()},
                  {"weights_sha256", weights_sha256(state_dict(model))}});
}

}  // namespace ladder
