// SPDX-License-Identifier: Apache-2.0
#include "ladder/train/run_record.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "ladder/amp/precision.h"
#include "ladder/checkpoint/saved_json.h"
#include "ladder/checkpoint/state_dict.h"
#include "ladder/core/current_step.h"
#include "ladder/core/error.h"
#include "ladder/core/interruption.h"
#include "ladder/core/memory.h"
#include "ladder/core/numbers.h"
#include "ladder/core/versions.h"
#include "ladder/train/bad_step.h"

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

// A bad loss makes the scores' gradient NaN, and with it that of the last bias, a handful of
// numbers. Undefined if there is nobody to learn it from.
torch::Tensor last_parameter(const torch::nn::Module& model, const ProcessGroup& group,
                             Precision precision) {
  if (group.world_size() == 1 || precision == Precision::kFp16) return {};
  auto parameters = model.parameters();
  std::erase_if(parameters, [](const auto& parameter) { return !parameter.requires_grad(); });
  return parameters.empty() ? torch::Tensor() : parameters.back();
}

double rate(std::int64_t samples, double seconds) {
  return seconds > 0.0 ? static_cast<double>(samples) / seconds : 0.0;
}

}  // namespace

RunRecord::RunRecord(RunRecordOptions options, Recipe recipe, ProcessGroup group)
    : options_(std::move(options)),
      recipe_(std::move(recipe)),
      group_(std::move(group)),
      started_(options_.started.value_or(steady_seconds())),
      log_({.rank = group_.rank(), .world_size = group_.world_size(), .quiet = options_.quiet}),
      trace_(Trace::path_of_rank(options_.trace, group_.rank())) {
  if (options_.fingerprint != 0 && options_.metrics.empty()) {
    throw UsageError::missing("--fingerprint", "--metrics PATH.jsonl, to write beside it",
                              "add --metrics run.jsonl: the fingerprint goes to run.rank0.jsonl");
  }
  if (!options_.metrics.empty() && group_.rank() == 0) metrics_ = JsonLines(options_.metrics);
  if (options_.fingerprint != 0) {
    fingerprint_ = Fingerprint(Fingerprint::path_beside(options_.metrics, group_.rank()),
                               options_.fingerprint, group_.rank());
  }
}

void RunRecord::begin(const RunSetup& setup, const DataLoader& train, const DataLoader& test,
                      const torch::nn::Module& model) {
  setup_ = setup;
  batches_ = train.size();
  loss_ = std::make_unique<LossMeter>(setup.device);
  averaged_ = last_parameter(model, group_, setup.precision);
  const std::int64_t parameters = parameter_count(model);
  log_.info(
      fmt::format("{}: {} with {} parameters on {}{}, {} thread{} ({}), {}", options_.stage,
                  recipe_.name(), with_thousands(parameters), setup.device.str(),
                  setup.precision == Precision::kFp32 ? "" : " in " + name_of(setup.precision),
                  setup.threads.threads, setup.threads.threads == 1 ? "" : "s",
                  setup.threads.reason, train.dataset().description()));
  if (group_.world_size() > 1) {
    log_.info(fmt::format("{}; backend {}", group_.description(), group_.backend()));
  }
  write_header(train, test, parameters);
  if (options_.stops) stop_.emplace(group_, setup.device);
}

void RunRecord::write_header(const DataLoader& train, const DataLoader& test,
                             std::int64_t parameters) {
  nlohmann::ordered_json versions;
  for (const auto& [name, version] : library_versions()) versions[name] = version;
  nlohmann::ordered_json flags;
  for (const auto& [name, value] : options_.flags) flags[name] = value;
  metrics_.write({{"record", "run"},
                  {"stage", options_.stage},
                  {"recipe", recipe_.name()},
                  {"world_size", group_.world_size()},
                  {"rank", group_.rank()},
                  {"backend", group_.backend()},
                  {"launch", group_.description()},
                  {"device", setup_.device.str()},
                  {"precision", name_of(setup_.precision)},
                  {"threads", setup_.threads.threads},
                  {"parameters", parameters},
                  {"data", train.dataset().description()},
                  {"train_size", train.dataset().size()},
                  {"test_size", test.dataset().size()},
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

void RunRecord::begin_epoch(std::int64_t epoch, std::int64_t done) {
  epoch_ = epoch;
  epoch_steps_ = 0;
  epoch_samples_ = 0;
  if (!options_.quiet) print(recipe_.epoch_line(epoch));
  loss_->begin_epoch(epoch);
  progress_ = std::make_unique<Progress>(
      ProgressOptions{.total = batches_ - done,
                      .label = fmt::format("epoch {}/{}", epoch, recipe_.epochs()),
                      .enabled = options_.progress && !options_.quiet && group_.rank() == 0,
                      .terminal = is_terminal(stderr)});
  epoch_started_ = steady_seconds();
  if (options_.stops) set_current_step(steps_ + 1);
}

void RunRecord::step(const Batch& batch, const torch::Tensor& loss, const torch::nn::Module& model,
                     bool updated) {
  updated_ = updated;
  ++epoch_steps_;
  epoch_samples_ += batch.global_size;
  if (std::isnan(first_step_at_)) first_step_at_ = steady_seconds();
  if (updated) {
    ++steps_;
    if (steps_ == kWarmUpSteps) warm_up_seconds_ = train_seconds_ + open_epoch_seconds();
    fingerprint_.record(steps_, batch, loss, model);
    trace_.step_done(steps_);
  }
  look_at_loss(batch, loss, model);
  progress_->update(epoch_steps_, epoch_samples_, loss_->last());
  if (updated) stop_if_told();
  if (updated && options_.stops) set_current_step(steps_ + 1);
}

// A bad loss in the middle of an accumulation window shows in the gradients at its end.
void RunRecord::look_at_loss(const Batch& batch, const torch::Tensor& loss,
                             const torch::nn::Module& model) {
  const bool shows = updated_ && averaged_.defined();
  const auto bad = loss_->add(loss, batch, updated_ ? steps_ : steps_ + 1, updated_,
                              shows ? averaged_.grad() : torch::Tensor());
  if (bad && !bad_step_) {
    bad_step_ = bad;
    const bool in_hand = batch.indices.defined() && batch.indices.is_same(bad->indices);
    if (in_hand) bad_tensor_ = first_bad_tensor(batch, model);
  }
  if (!bad_step_ || !updated_) return;
  progress_->finish();
  throw_bad_step(*bad_step_, bad_tensor_, last_checkpoint());
}

std::string RunRecord::last_checkpoint() const {
  return setup_.checkpoints.last ? setup_.checkpoints.last() : "";
}

void RunRecord::stop_if_told(bool now) {
  const int signal = stop_ ? stop_->agreed(now) : 0;
  if (signal == 0) return;
  if (progress_ != nullptr) progress_->finish();
  const auto& save = setup_.checkpoints.save;
  const auto checkpoint = save ? save() : "";
  throw Interruption(signal, group_.rank() == 0 ? stop_line(signal, steps_, checkpoint) : "");
}

void RunRecord::log_loss(double loss) {
  metrics_.write({{"record", "log"}, {"step", steps_}, {"loss", loss}});
}

void RunRecord::end_epoch() {
  if (options_.stops) set_current_step(0);
  if (const auto bad = loss_->flush()) throw_bad_step(*bad, "", last_checkpoint());
  const double sum = sum_over_ranks(loss_->sum(), group_);
  const double samples = sum_over_ranks(static_cast<double>(loss_->samples()), group_);
  if (samples > 0.0) train_loss_ = sum / samples;  // 0: resumed behind the last batch
  progress_->finish();
  const double seconds = open_epoch_seconds();
  train_seconds_ += seconds;
  samples_ += epoch_samples_;
  metrics_.write({{"record", "epoch"},
                  {"epoch", epoch_},
                  {"steps", epoch_steps_},
                  {"samples", epoch_samples_},
                  {"train_loss", train_loss_},
                  {"seconds", seconds},
                  {"samples_per_second", rate(epoch_samples_, seconds)}});
  progress_.reset();
  epoch_samples_ = 0;
}

double RunRecord::open_epoch_seconds() const {
  return progress_ == nullptr ? 0.0 : steady_seconds() - epoch_started_;
}

void RunRecord::begin_testing() {
  trace_.finish();  // what comes now belongs to no step
  stop_if_told(/*now=*/true);
  stop_.reset();
  if (!options_.quiet) print(recipe_.testing_line());
}

void RunRecord::print(const std::string& line) const {
  if (group_.rank() == 0) print_line(line);
}

void RunRecord::finish(const Evaluation& total, const torch::nn::Module& model,
                       const std::map<std::string, double>& more) {
  const double peak_rss = sum_over_ranks(static_cast<double>(peak_rss_bytes()), group_);
  print(recipe_.accuracy_line(total.accuracy()));
  const double seconds = steady_seconds() - started_;
  print(fmt::format("time elapsed: {:.2f} seconds", seconds));
  if (group_.rank() != 0) return;
  nlohmann::ordered_json result = {{"record", "result"},
                                   {"stage", options_.stage},
                                   {"recipe", recipe_.name()},
                                   {"world_size", group_.world_size()},
                                   {"precision", name_of(setup_.precision)},
                                   {"device", setup_.device.str()},
                                   {"epochs", recipe_.epochs()},
                                   {"steps", steps_},
                                   {"accuracy", total.accuracy()},
                                   {"correct", total.correct},
                                   {"seen", total.seen},
                                   {"train_loss", train_loss_},
                                   {"eval_loss", total.mean_loss()},
                                   {"train_seconds", train_seconds_},
                                   {"total_seconds", seconds},
                                   {"first_step_at", first_step_at_},
                                   {"warm_up_seconds", warm_up_seconds_},
                                   {"samples_per_second", rate(samples_, train_seconds_)},
                                   {"peak_rss_bytes", static_cast<std::int64_t>(peak_rss)},
                                   {"weights_sha256", weights_sha256(ladder::state_dict(model))}};
  for (const auto& [name, value] : more) result[name] = value;
  metrics_.write(result);
}

nlohmann::json RunRecord::state_dict() const {
  return {{"steps", steps_},
          {"samples", samples_ + epoch_samples_},
          {"train_seconds", train_seconds_ + open_epoch_seconds()}};
}

std::function<void()> RunRecord::plan_load(const nlohmann::json& state, std::string_view origin) {
  return [this, steps = saved_count(state, "steps", origin),
          samples = saved_count(state, "samples", origin),
          seconds = saved_number(state, "train_seconds", origin)] {
    steps_ = steps;
    samples_ = samples;
    train_seconds_ = seconds;
  };
}

}  // namespace ladder
