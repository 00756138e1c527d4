// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
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

// Requests of callbacks to their Trainer. All processes must set the same flags: evaluating, saving
// and stopping are collectives.
// Python's counterpart: transformers.TrainerControl.
struct TrainerControl {
  bool should_training_stop = false;
  bool should_epoch_stop = false;  // end the epoch now; reset when the next one begins
  bool should_save = false;        // reset when the next step begins, as the next two
  bool should_evaluate = false;
  bool should_log = false;
};

// The arguments of an event. A pointer that an event lacks is nullptr.
struct TrainerEvent {
  const TrainingArguments& args;
  const TrainerState& state;
  TrainerControl& control;
  Accelerator& accelerator;
  Model* model = nullptr;                        // prepared, once it is
  torch::optim::Optimizer* optimizer = nullptr;  // its next learning rate: lr_scheduler->last_lr()
  LrScheduler* lr_scheduler = nullptr;
  const AcceleratedDataLoader* train_dataloader = nullptr;
  const AcceleratedDataLoader* eval_dataloader = nullptr;
  const Batch* batch = nullptr;         // events of a batch or a step: this process's part
  const torch::Tensor* loss = nullptr;  // of that batch, before it is scaled for its window
  const Metrics* metrics = nullptr;     // on_evaluate, on_predict
  std::int64_t num_samples = 0;         // on_evaluate, on_predict: over all processes
  const Metrics* logs = nullptr;        // on_log
};

// Observes a training at fixed points, and steers it with event.control. Override what you need:
//
//     struct StopAt98 : TrainerCallback {
//       void on_evaluate(TrainerEvent& event) override {
//         if (event.metrics->at("eval_accuracy") > 0.98) event.control.should_training_stop = true;
//       }
//     };
//
// All processes call all events: docs/reference/6-trainer.md, "Callbacks", has their order. on_log,
// on_evaluate and on_save follow on_step_end and on_epoch_end, for the flags that are set.
// Python's counterpart: transformers.TrainerCallback.
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

  // A checkpoint stores the state of a callback with a name, as {"args": constructor arguments,
  // "attributes": counters}. A resume restores it if
  // TrainingArguments::restore_callback_states_from_checkpoint is set.
  virtual std::string state_name() const { return ""; }
  virtual nlohmann::json state_dict() const { return {}; }
  // Throws DataError naming `origin`.
  virtual void load_state_dict(const nlohmann::json& /*state*/, std::string_view /*origin*/) {}
};

using TrainerEventHandler = void (TrainerCallback::*)(TrainerEvent&);

// The callbacks of a Trainer, called in the order in which they were added.
class CallbackHandler {
 public:
  // Throws UsageError for nullptr.
  void add(std::shared_ptr<TrainerCallback> callback);
  // Removes the first callback that `matches` and returns it; nullptr if there is none.
  std::shared_ptr<TrainerCallback> pop(const std::function<bool(const TrainerCallback&)>& matches);

  // Callbacks that a handler adds or removes count from the next call on.
  void call(TrainerEventHandler handler, TrainerEvent& event) const;

  // The states by state_name: {"EarlyStoppingCallback": {...}}, a list if several share the name.
  std::map<std::string, nlohmann::json> state_dicts() const;
  void load_state_dicts(const std::map<std::string, nlohmann::json>& states,
                        std::string_view origin, const Log& log) const;

 private:
  std::vector<std::shared_ptr<TrainerCallback>> callbacks_;
};

// Sets the flags for the strategies of TrainingArguments. The first callback of every Trainer.
class DefaultFlowCallback : public TrainerCallback {
 public:
  void on_step_end(TrainerEvent& event) override;
  void on_epoch_end(TrainerEvent& event) override;
};

struct EarlyStoppingOptions {
  std::int64_t early_stopping_patience = 1;  // evaluations without improvement before the stop
  double early_stopping_threshold = 0.0;     // a smaller improvement does not count
};

// Stops the training when metric_for_best_model no longer improves. UsageError at the beginning of
// a training without such a metric, or without evaluations.
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

// "eval_loss" for "loss" and for "eval_loss".
std::string eval_metric_name(const std::string& metric);

// The value of metric_for_best_model. Throws UsageError with the existing names if there is none.
double required_metric(const Metrics& metrics, const TrainingArguments& args);

}  // namespace ladder
