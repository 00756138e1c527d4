// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/run_record_callback.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/progress.h"
#include "ladder/parallel/replica_check.h"

namespace ladder {
namespace {

Evaluation evaluation_of(const TrainerEvent& event, double accuracy) {
  const auto seen = static_cast<double>(event.num_samples);
  const double* const loss = find_metric(*event.metrics, "eval_loss");
  return {.correct = std::llround(accuracy * seen),
          .seen = event.num_samples,
          .loss_sum = (loss == nullptr ? std::nan("") : *loss) * seen};
}

}  // namespace

RunRecordCallback::RunRecordCallback(RunRecordOptions options, Recipe recipe)
    : options_(std::move(options)), recipe_(std::move(recipe)) {
  options_.started = steady_seconds();
  options_.progress = false;
  options_.stops = false;
}

void RunRecordCallback::on_init_end(TrainerEvent& event) {
  record_ = std::make_unique<RunRecord>(options_, recipe_, event.accelerator.process_group());
  event.accelerator.register_for_checkpointing(*record_, "run_record.json");
}

void RunRecordCallback::on_train_begin(TrainerEvent& event) {
  if (event.eval_dataloader == nullptr) {
    throw UsageError::missing("RunRecordCallback", "an eval_dataset", "give the Trainer one");
  }
  record_->begin(event.accelerator.setup(), event.train_dataloader->shard(),
                 event.eval_dataloader->shard(), *event.model);
}

void RunRecordCallback::on_epoch_begin(TrainerEvent& event) {
  record_->begin_epoch(event.train_dataloader->epoch() + 1, event.train_dataloader->first_batch());
}

void RunRecordCallback::on_substep_end(TrainerEvent& event) {
  record_->step(*event.batch, *event.loss, *event.model, /*updated=*/false);
}

void RunRecordCallback::on_optimizer_step(TrainerEvent& event) {
  record_->step(*event.batch, *event.loss, *event.model);
}

void RunRecordCallback::on_epoch_end(TrainerEvent& /*event*/) { record_->end_epoch(); }

void RunRecordCallback::on_train_end(TrainerEvent& /*event*/) {
  record_->begin_testing();
  is_trained_ = true;
}

void RunRecordCallback::on_log(TrainerEvent& event) {
  if (const double* const loss = find_metric(*event.logs, "loss")) record_->log_loss(*loss);
}

void RunRecordCallback::on_evaluate(TrainerEvent& event) {
  if (!std::exchange(is_trained_, false)) return;
  require_equal_replicas(*event.model, event.accelerator.process_group());
  const double* const accuracy = find_metric(*event.metrics, "eval_accuracy");
  if (accuracy == nullptr) {
    event.accelerator.log().info("no result is recorded: the evaluation has no accuracy");
    return;
  }
  record_->finish(evaluation_of(event, *accuracy), *event.model,
                  event.accelerator.scaler().numbers());
}

}  // namespace ladder
