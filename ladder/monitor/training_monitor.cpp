// SPDX-License-Identifier: Apache-2.0
#include "ladder/monitor/training_monitor.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "ladder/amp/precision.h"
#include "ladder/core/clock.h"
#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/core/log.h"
#include "ladder/io/json.h"
#include "ladder/launch/rank_status.h"
#include "ladder/launch/signals.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/nn/model.h"

namespace ladder {
namespace {

Fingerprint make_fingerprint(const MonitorOptions& options, int rank) {
  if (options.fingerprint == 0) return {};
  if (options.fingerprint_beside.empty()) {
    throw UsageError::missing("fingerprint", "fingerprint_beside, a file to write beside",
                              "set MonitorOptions::fingerprint_beside");
  }
  return Fingerprint(Fingerprint::path_beside(options.fingerprint_beside, rank),
                     options.fingerprint, rank);
}

void require_begun(bool epoch_begun, const char* caller) {
  if (epoch_begun) return;
  throw UsageError::conflict(fmt::format("TrainingMonitor::{}", caller), "no epoch has begun",
                             "call begin_epoch() before the first batch");
}

// Else the loss has another divisor than the sum of the gradients, or ranks cut micro-batches.
void require_same_micro_batch(const Batch& batch, std::int64_t of_model) {
  if (batch.micro_batch == of_model) return;
  const auto text = [](std::int64_t size) {
    return size == 0 ? std::string("no micro-batches") : fmt::format("micro-batches of {}", size);
  };
  throw UsageError::conflict(
      fmt::format("a model with {}", text(of_model)),
      fmt::format("the batches have {}", text(batch.micro_batch)),
      "give the batch sampler and ExactDataParallel one number, in the field micro_batch of "
      "DivideBatchesOptions and ExactDataParallelOptions");
}

}  // namespace

nlohmann::json to_json(const TrainingProgress& progress, const RunSettings& settings) {
  return {{"steps", progress.steps},
          {"samples", progress.samples},
          {"train_seconds", progress.train_seconds},
          {kSettings, settings_to_json(settings)}};
}

TrainingProgress training_progress(const nlohmann::json& state, std::string_view origin,
                                   const RunSettings& settings, const Log& log) {
  const JsonReader saved(state, json_data_error(origin));
  compare_settings(saved.value(kSettings), settings, origin, log);
  return {.steps = saved.count("steps", kMostOptimizerSteps),
          .samples = saved.count("samples"),
          .train_seconds = saved.number("train_seconds", 0.0)};
}

TrainingMonitor::TrainingMonitor(MonitorOptions options, RunSetup setup,
                                 const torch::nn::Module& model, std::int64_t batches)
    : options_(std::move(options)),
      setup_(std::move(setup)),
      model_(model),
      micro_batch_(micro_batch_of(model)),
      batches_(batches),
      fingerprint_(make_fingerprint(options_, setup_.group.rank())),
      trace_(StepTrace::path_of_rank(options_.trace, setup_.group.rank())),
      guard_(model, setup_) {
  options_.settings.push_back({"precision", name_of(setup_.precision), Effect::kTraining});
}

void TrainingMonitor::begin_epoch(std::int64_t epoch, std::int64_t epochs, std::int64_t done) {
  if (batches_ == 0) {
    throw DataError::mismatch("training data", "at least one batch per epoch", "none",
                              "use a smaller batch size, or more samples");
  }
  if (options_.stop_on_signals && !stop_) stop_.emplace(setup_.group);
  epoch_ = {.epoch = epoch};
  done_ = done;
  print(options_.epoch_line, epoch, epochs);
  guard_.begin_epoch(epoch);
  bar_ = std::make_unique<ProgressBar>(
      ProgressOptions{.total = batches_ - done,
                      .label = fmt::format("epoch {}/{}", epoch, epochs),
                      .enabled = options_.progress && !options_.quiet && setup_.group.rank() == 0,
                      .terminal = is_terminal(stderr)});
  epoch_started_ = steady_seconds();
  if (options_.stop_on_signals) set_current_step(progress_.steps + 1);
}

void TrainingMonitor::step(const Batch& batch, const torch::Tensor& loss, bool updated) {
  require_begun(bar_ != nullptr, "step");
  require_same_micro_batch(batch, micro_batch_);
  updated_ = updated;
  ++epoch_.steps;
  epoch_.samples += batch.global_size;
  if (std::isnan(first_step_at_)) first_step_at_ = steady_seconds();
  if (updated) {
    ++progress_.steps;
    if (progress_.steps == kWarmUpSteps) {
      warm_up_seconds_ = progress_.train_seconds + open_epoch_seconds();
    }
    fingerprint_.record(progress_.steps, batch, loss, model_);
    trace_.step_done(progress_.steps);
  }
  check_loss(batch, loss);
  bar_->update(epoch_.steps, epoch_.samples, guard_.meter().last());
  if (!updated) return;
  stop_if_signalled();
  if (options_.stop_on_signals) set_current_step(progress_.steps + 1);
}

void TrainingMonitor::check_loss(const Batch& batch, const torch::Tensor& loss) {
  // A micro-batch belongs to the step at the end of its accumulation window.
  const auto step = updated_ ? progress_.steps : progress_.steps + 1;
  try {
    guard_.add(batch, loss, step, updated_);
  } catch (const Error&) {
    bar_->finish();
    throw;
  }
}

void TrainingMonitor::stop_if_signalled(bool now) {
  const int signal = stop_ ? stop_->poll_all_ranks(now) : 0;
  if (signal == 0) return;
  if (bar_ != nullptr) bar_->finish();
  const auto& save = setup_.checkpoints.save;
  const auto checkpoint = save ? save() : "";
  const bool prints = setup_.group.rank() == 0;
  throw StoppedBySignal(signal, prints ? stop_line(signal, progress_.steps, checkpoint) : "");
}

EpochSummary TrainingMonitor::end_epoch() {
  require_begun(bar_ != nullptr, "end_epoch");
  if (options_.stop_on_signals) set_current_step(0);
  guard_.flush();
  const double sum = sum_over_ranks(guard_.meter().sum(), setup_.group);
  const double samples =
      sum_over_ranks(static_cast<double>(guard_.meter().samples()), setup_.group);
  if (samples > 0.0) train_loss_ = sum / samples;  // 0: resumed after the last batch
  bar_->finish();
  epoch_.seconds = open_epoch_seconds();
  epoch_.train_loss = train_loss_;
  progress_.train_seconds += epoch_.seconds;
  progress_.samples += epoch_.samples;
  bar_.reset();
  done_ = 0;
  return std::exchange(epoch_, {});
}

void TrainingMonitor::end_training() {
  trace_.finish();
  const Log log({.rank = setup_.group.rank()});
  if (!options_.trace.empty() && !trace_.has_recorded()) {
    log.warn(
        fmt::format("trace: nothing was recorded: it begins with step {}", StepTrace::kFirstStep));
  }
  if (options_.fingerprint != 0 && !fingerprint_.has_recorded()) {
    log.warn(fmt::format("fingerprint: nothing was recorded: it begins with step {}",
                         options_.fingerprint));
  }
  stop_if_signalled(/*now=*/true);
  stop_.reset();
  print(options_.testing_line, 0, 0);
}

void TrainingMonitor::print(const std::string& line, std::int64_t epoch,
                            std::int64_t epochs) const {
  if (line.empty() || options_.quiet || setup_.group.rank() != 0) return;
  print_line(fmt::format(fmt::runtime(line), fmt::arg("epoch", epoch), fmt::arg("epochs", epochs)));
}

double TrainingMonitor::open_epoch_seconds() const {
  return bar_ == nullptr ? 0.0 : steady_seconds() - epoch_started_;
}

TrainingTotals TrainingMonitor::totals() const {
  return {.steps = progress_.steps,
          .samples = progress_.samples,
          .train_loss = train_loss_,
          .train_seconds = progress_.train_seconds,
          .first_step_at = first_step_at_,
          .warm_up_seconds = warm_up_seconds_};
}

nlohmann::json TrainingMonitor::state_dict() const {
  return to_json({.steps = progress_.steps,
                  .samples = progress_.samples + epoch_.samples,
                  .train_seconds = progress_.train_seconds + open_epoch_seconds()},
                 options_.settings);
}

std::function<void()> TrainingMonitor::plan_load(const nlohmann::json& state,
                                                 std::string_view origin) {
  const Log log({.rank = setup_.group.rank(), .quiet = options_.quiet});
  const auto progress = training_progress(state, origin, options_.settings, log);
  return [this, progress] { restore(progress); };
}

}  // namespace ladder
