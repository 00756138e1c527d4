// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ladder/data/dataset.h"
#include "ladder/nn/model.h"
#include "ladder/trainer/trainer.h"
#include "tests/support/golden.h"

// The runs of tests/golden/trainer.json, as tests/golden/trainer.py describes them.
namespace ladder::scripted {

// Entry i; after the last, the last one again.
inline double entry(const nlohmann::json& list, std::size_t i) {
  return number(list.at(std::min(i, list.size() - 1)));
}

// Sample n: x = [n, 0, 0, 1], label n % 3.
class Samples : public Dataset {
 public:
  explicit Samples(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto count = std::ssize(indices);
    auto x = torch::zeros({count, 4});
    auto labels = torch::zeros({count}, torch::kInt64);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto n = indices[static_cast<std::size_t>(i)];
      x[i][0] = static_cast<float>(n);
      x[i][3] = 1.0F;
      labels[i] = n % 3;
    }
    return {.inputs = x, .targets = labels};
  }

 private:
  std::int64_t size_;
};

class Linear : public Model {
 public:
  Linear()
      : weight(register_parameter("weight", torch::zeros({3, 4}))),
        bias(register_parameter("bias", torch::zeros({3}))) {}
  torch::Tensor forward(const Inputs& inputs) override {
    const auto& x = inputs.only();
    return torch::linear(x, weight, bias);
  }
  std::shared_ptr<Model> new_like() const override { return std::make_shared<Linear>(); }

  torch::Tensor weight;
  torch::Tensor bias;
};

// A Trainer on the CPU that prints nothing.
inline TrainerOptions options_with(const TrainingArguments& args, std::int64_t train_samples,
                                   std::int64_t eval_samples) {
  return {.model = std::make_shared<Linear>(),
          .args = args,
          .train_dataset = std::make_shared<Samples>(train_samples),
          .eval_dataset = std::make_shared<Samples>(eval_samples),
          .accelerator = {.cpu = true, .threads = 1, .quiet = true}};
}

// Calls note() with the name of each event, as Python spells it without "on_".
class EventNoter : public TrainerCallback {
 public:
  void on_init_end(TrainerEvent& event) override { note("init_end", event); }
  void on_train_begin(TrainerEvent& event) override { note("train_begin", event); }
  void on_epoch_begin(TrainerEvent& event) override { note("epoch_begin", event); }
  void on_step_begin(TrainerEvent& event) override { note("step_begin", event); }
  void on_substep_end(TrainerEvent& event) override { note("substep_end", event); }
  void on_pre_optimizer_step(TrainerEvent& event) override { note("pre_optimizer_step", event); }
  void on_optimizer_step(TrainerEvent& event) override { note("optimizer_step", event); }
  void on_step_end(TrainerEvent& event) override { note("step_end", event); }
  void on_epoch_end(TrainerEvent& event) override { note("epoch_end", event); }
  void on_train_end(TrainerEvent& event) override { note("train_end", event); }
  void on_prediction_step(TrainerEvent& event) override { note("prediction_step", event); }
  void on_evaluate(TrainerEvent& event) override { note("evaluate", event); }
  void on_predict(TrainerEvent& event) override { note("predict", event); }
  void on_save(TrainerEvent& event) override { note("save", event); }
  void on_log(TrainerEvent& event) override { note("log", event); }

 private:
  virtual void note(const std::string& name, TrainerEvent& event) = 0;
};

// Micro-batch k has the loss train_losses[k], else (k + 1) / 4, and the gradient 2 for the first
// bias. Batch j of evaluation i has the loss eval_losses[i] + j.
class ScriptedTrainer : public Trainer {
 public:
  ScriptedTrainer(TrainerOptions options, nlohmann::json script)
      : Trainer(std::move(options)), script_(std::move(script)) {}

  std::vector<std::vector<std::int64_t>> batches;  // the samples of each micro-batch
  std::size_t evaluations = 0;                     // events on_evaluate and on_predict so far
  double eval_batch = 0.0;                         // batches of the evaluation under way

 protected:
  LossOutput compute_loss(Model& model, const Inputs& inputs, const NumItems& items) override {
    const auto outputs = model.forward(inputs.at("x"));
    if (!model.is_training()) return {torch::full({}, eval_loss() + eval_batch++), outputs};
    const auto k = batches.size();
    const auto samples = inputs.at("x").select(1, 0).to(torch::kInt64).contiguous();
    batches.emplace_back(samples.data_ptr<std::int64_t>(),
                         samples.data_ptr<std::int64_t>() + samples.numel());
    const auto moved = dynamic_cast<Linear&>(this->model()).bias[0] * 2.0;
    (void)items;
    return {moved - moved.detach() + train_loss(k), outputs};
  }

  Metrics compute_metrics(const EvalPrediction& /*prediction*/) override {
    if (!script_.contains("scores")) return {};
    return {{"score", entry(script_["scores"], evaluations)}};
  }

 private:
  double eval_loss() const {
    return script_.contains("eval_losses") ? entry(script_["eval_losses"], evaluations) : 0.5;
  }
  double train_loss(std::size_t k) const {
    return script_.contains("train_losses") ? entry(script_["train_losses"], k)
                                            : (static_cast<double>(k) + 1.0) / 4.0;
  }

  nlohmann::json script_;
};

}  // namespace ladder::scripted
