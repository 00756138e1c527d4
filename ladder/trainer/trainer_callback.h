// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/accelerate/accelerated_data_loader.h"
#include "ladder/accelerate/accelerator.h"
#include "ladder/data/batch.h"
#include "ladder/nn/model.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/trainer/metrics.h"
#include "ladder/trainer/trainer_state.h"
#include "ladder/trainer/training_arguments.h"

namespace ladder {

// What callbacks may ask of a Trainer. Every process must ask the same: the Trainer evaluates,
// saves and stops where its flags say so, and those are collectives.
// Python's counterpart: transformers.TrainerControl.
struct TrainerControl {
  bool should_training_stop = false;
  bool should_epoch_stop = false;  // until the next epoch begins; so that it begins now
  bool should_save = false;        // this and the next two: until the next step begins
  bool should_evaluate = false;
  bool should_log = false;
};

// What a callback is told. What an event has not is nullptr.
struct TrainerEvent {
  const TrainingArguments& args;
  const TrainerState& state;
  TrainerControl& control;
  Accelerator& accelerator;
  Model* model = nullptr;  // prepared, once it is
  torch::optim::Optimizer* optimizer = nullptr;
  LrScheduler* lr_scheduler = nullptr;
  const AcceleratedDataLoader* train_dataloader = nullptr;
  const AcceleratedDataLoader* eval_dataloader = nullptr;
  const Batch* batch = nullptr;         // on_optimizer_step, on_substep_end: this process's part
  const torch::Tensor* loss = nullptr;  // of that batch, before it is weighed in its window
  const Metrics* metrics = nullptr;     // on_evaluate, on_predict
  std::int64_t num_samples = 0;         // on_evaluate, on_predict: over all processes
  const Metrics* logs = nullptr;        // on_log
};

// Looks at a training at fixed points, and decides with event.control. Override what you need.
// All processes call all events, in this order:
//
//     on_init_end
//     on_train_begin
//       on_epoch_begin                          each epoch
//         on_step_begin                         each step of the optimizer
//           on_substep_end                      each batch of a window but the last
//           on_pre_optimizer_step               gradients are summed up and clipped
//           on_optimizer_step                   weights have changed, gradients still stand
//         on_step_end, then on_log, on_evaluate and on_save, as control says
//       on_epoch_end, then the same three
//     on_log with the figures of the whole run, on_train_end
//
// An evaluation calls on_prediction_step after each batch, then on_log, then on_evaluate; predict()
// ends with on_predict. Python's counterpart: transformers.TrainerCallback.
class TrainerCallback {
 public:
  TrainerCallback() = default;
  virtual ~TrainerCallback() = default;
  TrainerCallback(const TrainerCallback&) = delete;
  TrainerCallback& operator=(const TrainerCallback&) = delete;

  virtual void on_init_end(TrainerEvent& /*event*/) {}
  virtual void on_train_begin(TrainerEvent& /*event*/) {}
  virtual void on_epoch_begin(TrainerEvent& /*event*/) {}
  virtual void on_step_begin(TrainerEvent& /*event*/) {}
  virtual void on_substep_end(TrainerEvent& /*event*/) {}
  virtual void on_pre_optimizer_step(TrainerEvent& /*event*/) {}
  virtual void on_optimizer_step(TrainerEvent& /*event*/) {}
  virtual void on_step_end(TrainerEvent& /*event*/) {}
  virtual void on_epoch_end(TrainerEvent& /*event*/) {}
  virtual void on_train_end(TrainerEvent& /*event*/) {}
  virtual void on_prediction_step(TrainerEvent& /*event*/) {}
  virtual void on_evaluate(TrainerEvent& /*event*/) {}
  virtual void on_predict(TrainerEvent& /*event*/) {}
  virtual void on_save(TrainerEvent& /*event*/) {}
  virtual void on_log(TrainerEvent& /*event*/) {}

  // A callback whose state a checkpoint keeps has a name and these two. The state is
  // {"args": what it was made with, "attributes": what it has counted}. It comes back at a resume
  // if TrainingArguments::restore_callback_states_from_checkpoint says so.
  virtual std::string state_name() const { return ""; }
  virtual nlohmann::json state_dict() const { return {}; }
  // Throws DataError naming `origin`.
  virtual void load_state_dict(const nlohmann::json& /*state*/, std::string_view /*origin*/) {}
};

using TrainerEventHandler = void (TrainerCallback::*)(TrainerEvent&);

// The callbacks of a Trainer, called in the order in which they were added.
class CallbackHandler {
 public:
  void add(std::shared_ptr<TrainerCallback> callback);
  // Whether it was there.
  bool remove(const TrainerCallback& callback);

  void call(TrainerEventHandler handler, TrainerEvent& event) const;

  // Of all callbacks that have a state: {"EarlyStoppingCallback": {...}}, a list where several have
  // one name; and back.
  std::map<std::string, nlohmann::json> state_dicts() const;
  void load_state_dicts(const std::map<std::string, nlohmann::json>& states,
                        std::string_view origin, const Log& log) const;

 private:
  std::vector<std::shared_ptr<TrainerCallback>> callbacks_;
};

// Sets the flags as TrainingArguments say: what every Trainer has as its first callback.
class DefaultFlowCallback : public TrainerCallback {
 public:
  void on_step_end(TrainerEvent& event) override;
  void on_epoch_end(TrainerEvent& event) override;
};

struct EarlyStoppingOptions {
  std::int64_t early_stopping_patience = 1;  // evaluations without a better value; then it stops
  double early_stopping_threshold = 0.0;     // a value must be better by more than this
};

// Stops the training when metric_for_best_model no longer gets better. UsageError at the beginning
// of a training without such a metric, or without evaluations.
class EarlyStoppingCallback : public TrainerCallback {
 public:
  explicit EarlyStoppingCallback(EarlyStoppingOptions options = {}) : options_(options) {}

  void on_train_begin(TrainerEvent& event) override;
  void on_evaluate(TrainerEvent& event) override;

  std::string state_name() const override { return "EarlyStoppingCallback"; }
  nlohmann::json state_dict() const override;
  void load_state_dict(const nlohmann::json& state, std::string_view origin) override;

 private:
  EarlyStoppingOptions options_;
  std::int64_t patience_counter_ = 0;
};

// "eval_loss" for "loss": the name under which an evaluation has its metrics.
std::string eval_metric_name(const std::string& metric);

// The metric by which args choose the best model. UsageError, naming those that there are.
double required_metric(const Metrics& metrics, const TrainingArguments& args);

}  // namespace ladder
