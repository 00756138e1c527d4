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
#include "ladder/launch/signals.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/nn/model.h"

namespace ladder {
namespace {

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
      "give the batch sampler and the model one number, in the field micro_batch of "
      "DivideBatchesOptions and ReplicateOptions");
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
  return {.steps = saved.count("steps", kMaxOptimizerSteps),
          .samples = saved.count("samples"),
          .train_seconds = saved.number("train_seconds", 0.0)};
}

TrainingMonitor::TrainingMonitor(MonitorOptions options, RunSetup setup,
                                 const torch::nn::Module& model, std::int64_t batches,
                                 const MakeObservers& make)
    : options_(std::move(options)),
      setup_(std::move(setup)),
      model_(model),
      micro_batch_(micro_batch_of(model)),
      batches_(batches),
      meter_(std::make_shared<LossMeter>(setup_.device)) {
  make(observers_, options_, setup_, model);
  options_.settings.push_back({"precision", name_of(setup_.precision), Effect::kTraining});
}

void TrainingMonitor::begin_epoch(std::int64_t epoch, std::int64_t epochs, std::int64_t done) {
  if (batches_ == 0) {
    throw DataError::mismatch("training data", "at least one batch per epoch", "none",
                              "use a smaller batch size, or more samples");
  }
  epoch_ = {.epoch = epoch};
  done_ = done;
  print(options_.epoch_line, epoch, epochs);
  meter_->begin_epoch(epoch);
  observers_.begin_epoch({.epoch = epoch,
                          .epochs = epochs,
                          .batches = batches_ - done,
                          .steps = progress_.steps,
                          .meter = meter_});
  in_epoch_ = true;
  epoch_started_ = steady_seconds();
}

void TrainingMonitor::step(const Batch& batch, const torch::Tensor& loss, bool updated) {
  require_begun(in_epoch_, "step");
  require_same_micro_batch(batch, micro_batch_);
  updated_ = updated;
  ++epoch_.steps;
  epoch_.samples += batch.global_size;
  if (std::isnan(first_step_at_)) first_step_at_ = steady_seconds();
  if (updated && ++progress_.steps == kWarmUpSteps) {
    warm_up_seconds_ = progress_.train_seconds + open_epoch_seconds();
  }
  // A micro-batch belongs to the step at the end of its accumulation window.
  const auto step = updated ? progress_.steps : progress_.steps + 1;
  meter_->add(loss, batch, step, updated);
  stop_after(observers_.step({.model = model_,
                              .batch = batch,
                              .loss = loss,
                              .step = step,
                              .updated = updated,
                              .batches = epoch_.steps,
                              .samples = epoch_.samples,
                              .mean_loss = meter_->last()}));
}

void TrainingMonitor::stop_after(Verdict verdict) {
  if (!verdict) return;
  const auto& save = setup_.checkpoints.save;
  const auto checkpoint = save ? save() : "";
  const bool prints = setup_.group.rank() == 0;
  throw StoppedBySignal(verdict.signal,
                        prints ? stop_line(verdict.signal, progress_.steps, checkpoint) : "");
}

EpochSummary TrainingMonitor::end_epoch() {
  require_begun(in_epoch_, "end_epoch");
  observers_.end_epoch();
  meter_->flush();
  // LossMeter does not count the steps that it read with one that is not finite.
  const double own = meter_->bad() ? std::numeric_limits<double>::quiet_NaN() : meter_->sum();
  const double sum = sum_over_ranks(own, setup_.group);
  const double samples = sum_over_ranks(static_cast<double>(meter_->samples()), setup_.group);
  // No samples: resumed after the last batch.
  if (samples > 0.0 || std::isnan(sum)) train_loss_ = sum / samples;
  epoch_.seconds = open_epoch_seconds();
  epoch_.train_loss = train_loss_;
  progress_.train_seconds += epoch_.seconds;
  progress_.samples += epoch_.samples;
  in_epoch_ = false;
  done_ = 0;
  return std::exchange(epoch_, {});
}

void TrainingMonitor::end_training() {
  stop_after(observers_.end());
  print(options_.testing_line, 0, 0);
}

void TrainingMonitor::print(const std::string& line, std::int64_t epoch,
                            std::int64_t epochs) const {
  if (line.empty() || options_.quiet || setup_.group.rank() != 0) return;
  print_line(fmt::format(fmt::runtime(line), fmt::arg("epoch", epoch), fmt::arg("epochs", epochs)));
}

double TrainingMonitor::open_epoch_seconds() const {
  return in_epoch_ ? steady_seconds() - epoch_started_ : 0.0;
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
