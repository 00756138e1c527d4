// SPDX-License-Identifier: Apache-2.0
#include "mnist/record_callback.h"

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "ladder/core/clock.h"
#include "ladder/core/error.h"
#include "ladder/observe/observers.h"
#include "ladder/parallel/replica_check.h"

namespace mnist {
namespace {

using namespace ladder;

Evaluation evaluation_of(const TrainerEvent& event, double accuracy) {
  const auto seen = static_cast<double>(event.num_samples);
  const double* const loss = find_metric(*event.metrics, "eval_loss");
  return {.correct = std::llround(accuracy * seen),
          .seen = event.num_samples,
          .loss_sum = (loss == nullptr ? std::nan("") : *loss) * seen};
}

}  // namespace

RecordCallback::RecordCallback(const SingleOptions& options, Recipe recipe)
    : options_(options.record), monitor_options_(options.monitor), recipe_(std::move(recipe)) {
  options_.started = steady_seconds();
}

void RecordCallback::on_init_end(TrainerEvent& event) {
  record_ = std::make_unique<Record>(options_, recipe_, event.accelerator.process_group());
  event.accelerator.register_for_checkpointing(progress_, "run_record.json");
}

void RecordCallback::on_train_begin(TrainerEvent& event) {
  if (event.eval_dataloader == nullptr) {
    throw UsageError::missing("RecordCallback", "an eval_dataset", "give the Trainer one");
  }
  const auto setup = event.accelerator.setup();
  monitor_ = std::make_unique<TrainingMonitor>(monitor_options_, setup, *event.model,
                                               event.train_dataloader->size(), step_checks);
  monitor_->restore(resumed_);
  record_->begin(setup, event.train_dataloader->shard(), event.eval_dataloader->shard(),
                 *event.model);
}

void RecordCallback::on_epoch_begin(TrainerEvent& event) {
  monitor_->begin_epoch(event.train_dataloader->epoch() + 1, recipe_.epochs(),
                        event.train_dataloader->first_batch());
}

void RecordCallback::on_substep_end(TrainerEvent& event) {
  monitor_->step(*event.batch, *event.loss, /*updated=*/false);
}

void RecordCallback::on_optimizer_step(TrainerEvent& event) {
  monitor_->step(*event.batch, *event.loss);
}

void RecordCallback::on_epoch_end(TrainerEvent& /*event*/) {
  record_->epoch(monitor_->end_epoch());
}

void RecordCallback::on_train_end(TrainerEvent& /*event*/) {
  monitor_->end_training();
  is_trained_ = true;
}

void RecordCallback::on_log(TrainerEvent& event) {
  const double* const loss = find_metric(*event.logs, "loss");
  if (loss != nullptr) record_->log_loss(monitor_->steps(), *loss);
}

void RecordCallback::on_evaluate(TrainerEvent& event) {
  if (!std::exchange(is_trained_, false)) return;
  require_equal_replicas(*event.model, event.accelerator.process_group());
  const double* const accuracy = find_metric(*event.metrics, "eval_accuracy");
  if (accuracy == nullptr) {
    event.accelerator.log().info("no result is recorded: the evaluation has no accuracy");
    return;
  }
  record_->result(evaluation_of(event, *accuracy), monitor_->totals(), *event.model,
                  event.accelerator.scaler().metrics());
}

nlohmann::json RecordCallback::Progress::state_dict() const {
  return callback.monitor_ != nullptr ? callback.monitor_->state_dict()
                                      : to_json(callback.resumed_, callback.settings());
}

std::function<void()> RecordCallback::Progress::plan_load(const nlohmann::json& state,
                                                          std::string_view origin) const {
  const auto progress =
      training_progress(state, origin, callback.settings(), callback.record_->log());
  return [this, progress] { callback.resumed_ = progress; };
}

}  // namespace mnist
