// SPDX-License-Identifier: Apache-2.0
// What a program may replace in a Trainer: hooks, functions, optimizers, callbacks, label names.
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/optim/sgd.h"
#include "ladder/trainer/progress_callback.h"
#include "ladder/trainer/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/scripted_trainer.h"
#include "tests/support/temporary_folder.h"

namespace ladder::scripted {
namespace {

using nlohmann::json;
using Calls = std::vector<std::string>;

const json& hooks() { return golden_json("trainer_hooks.json"); }

// --- the runs of tests/golden/trainer_hooks.py ---

class Classifier : public Linear {
 public:
  Classifier() {
    const torch::NoGradGuard no_grad;
    weight.select(1, 0).copy_(torch::tensor({0.0F, 1.0F, 2.0F}));
    bias.copy_(torch::tensor({0.0F, 0.5F, 0.0F}));
  }
  torch::Tensor forward(const Inputs& inputs) override {
    return torch::linear(inputs.at("x"), weight, bias);
  }
};

class EventRecorder : public EventNoter {
 public:
  explicit EventRecorder(Calls& calls) : calls_(calls) {}

 private:
  void note(const std::string& name, TrainerEvent& /*event*/) override {
    calls_.push_back("on_" + name);
  }
  Calls& calls_;
};

// Notes each hook, then calls the Trainer's own.
class HookTrainer : public Trainer {
 public:
  HookTrainer(TrainerOptions options, Calls& calls) : Trainer(std::move(options)), calls_(calls) {}

 protected:
  LossOutput compute_loss(Model& model, const Inputs& inputs, const NumItems& items) override {
    calls_.emplace_back("compute_loss");
    const auto outputs = model.forward(inputs);
    const auto sum =
        torch::cross_entropy_loss(outputs, inputs.at("labels"), {}, at::Reduction::Sum);
    return {items.mean(sum), outputs};
  }
  torch::Tensor training_step(Model& model, const Inputs& inputs, const NumItems& items) override {
    calls_.emplace_back("training_step");
    return Trainer::training_step(model, inputs, items);
  }
  Prediction prediction_step(Model& model, const Inputs& inputs, bool loss_only) override {
    calls_.emplace_back("prediction_step");
    return Trainer::prediction_step(model, inputs, loss_only);
  }
  std::unique_ptr<torch::optim::Optimizer> create_optimizer() override {
    calls_.emplace_back("create_optimizer");
    return Trainer::create_optimizer();
  }
  std::unique_ptr<LrScheduler> create_scheduler(torch::optim::Optimizer& optimizer,
                                                std::int64_t steps) override {
    calls_.emplace_back("create_scheduler");
    return Trainer::create_scheduler(optimizer, steps);
  }
  DataLoader get_train_dataloader() override {
    calls_.emplace_back("get_train_dataloader");
    return Trainer::get_train_dataloader();
  }
  DataLoader get_eval_dataloader(std::shared_ptr<const Dataset> dataset) override {
    calls_.emplace_back("get_eval_dataloader");
    return Trainer::get_eval_dataloader(std::move(dataset));
  }
  DataLoader get_test_dataloader(std::shared_ptr<const Dataset> dataset) override {
    calls_.emplace_back("get_test_dataloader");
    return Trainer::get_test_dataloader(std::move(dataset));
  }
  void log(Metrics& logs) override {
    calls_.emplace_back("log");
    Trainer::log(logs);
  }
  double floating_point_ops(const Inputs& /*inputs*/) override {
    calls_.emplace_back("floating_point_ops");
    return 0.0;
  }

 private:
  Calls& calls_;
};

json json_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if (tensor.dim() == 0) return tensor.item<double>();
  auto list = json::array();
  for (std::int64_t i = 0; i < tensor.size(0); ++i) list.push_back(json_of(tensor[i]));
  return list;
}

// A single tensor as it is, several as a list, as in Python.
json json_of(const Inputs& labels) {
  if (labels.empty()) return nullptr;
  if (labels.size() == 1) return json_of(labels.only());
  auto list = json::array();
  for (const auto& [name, tensor] : labels) list.push_back(json_of(tensor));
  return list;
}

struct Results {
  Calls calls;
  int collated = 0;
  json seen = json::array();
  json predicted = json::array();
  json losses = json::array();
};

TrainerOptions options_of(const json& run, Results& results, const std::string& folder) {
  json arguments = hooks()["common_arguments"];
  arguments.update(run["arguments"]);
  TrainerOptions options{.model = std::make_shared<Classifier>(),
                         .args = training_arguments_from(arguments, "golden"),
                         .train_dataset = std::make_shared<Samples>(run["samples"][0]),
                         .eval_dataset = std::make_shared<Samples>(run["samples"][1]),
                         .callbacks = {std::make_shared<EventRecorder>(results.calls)},
                         .accelerator = {.cpu = true, .threads = 1, .quiet = true}};
  options.args.output_dir = folder;
  options.data_collator = [&results](const Batch& batch) -> Inputs {
    ++results.collated;
    const auto& x = batch.inputs.only();
    return {{"x", x},
            {"labels", batch.targets},
            {"parity", x.select(1, 0).to(torch::kInt64).remainder(2)}};
  };
  for (const std::string part : run["parts"]) {
    if (part == "compute_metrics") {
      options.compute_metrics = [&results](const EvalPrediction& prediction) -> Metrics {
        results.calls.emplace_back("compute_metrics");
        results.seen.push_back({json_of(prediction.predictions), json_of(prediction.label_ids)});
        return {};
      };
    } else if (part == "preprocess") {
      options.preprocess_logits_for_metrics = [&results](const torch::Tensor& logits,
                                                         const Inputs& /*labels*/) {
        results.calls.emplace_back("preprocess_logits_for_metrics");
        return logits.argmax(-1);
      };
    } else if (part == "optimizers") {
      const auto sgd = std::make_shared<SGD>(options.model->parameters(), SgdOptions{.lr = 0.5});
      options.optimizers = {
          sgd, std::make_shared<StepLR>(*sgd, StepLrOptions{.step_size = 2, .gamma = 0.5})};
    }
  }
  return options;
}

json value_or_null(const Metrics& metrics, std::string_view name) {
  const double* const value = find_metric(metrics, name);
  return value == nullptr ? json() : json(*value);
}

void expect_losses(const json& got, const json& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (expected[i].is_null()) {
      EXPECT_TRUE(got[i].is_null());
    } else {
      EXPECT_NEAR(got[i].get<double>(), expected[i].get<double>(), 1e-6);
    }
  }
}

TEST(TrainerHooks, AreCalledWhenAndAsOftenAsInTransformers) {
  for (const auto& run : hooks()["cases"]) {
    SCOPED_TRACE(run["name"].get<std::string>());
    const TemporaryFolder folder;
    Results results;
    HookTrainer trainer(options_of(run, results, folder.file("out")), results.calls);
    for (const std::string call : run["calls"]) {
      if (call == "train") {
        trainer.train();
      } else if (call == "evaluate") {
        results.losses.push_back(value_or_null(trainer.evaluate(), "eval_loss"));
      } else {
        const auto output = trainer.predict();
        results.losses.push_back(value_or_null(output.metrics, "test_loss"));
        results.predicted.push_back({json_of(output.predictions), json_of(output.label_ids)});
      }
    }
    Calls expected;
    for (const std::string group : run["sequence"]) {
      std::istringstream words(group);
      for (std::string word; words >> word;) expected.push_back(word);
    }
    EXPECT_EQ(results.calls, expected);
    EXPECT_EQ(results.collated, run["collated"]);
    auto rates = json::array();
    for (const auto& entry : trainer.state().log_history) {
      const double* const rate = find_metric(entry.values, "learning_rate");
      if (rate != nullptr) rates.push_back(*rate);
    }
    EXPECT_EQ(rates, run["rates"]);
    if (!run.contains("seen")) continue;
    EXPECT_EQ(results.seen, run["seen"]);
    EXPECT_EQ(results.predicted, run["predicted"]);
    expect_losses(results.losses, run["losses"]);
  }
}

// --- callbacks ---

// Notes that a training begins.
class Numbered : public TrainerCallback {
 public:
  Numbered(std::string text, Calls& called) : name(std::move(text)), called_(called) {}
  void on_train_begin(TrainerEvent& /*event*/) override { called_.push_back(name); }
  const std::string name;

 private:
  Calls& called_;
};
class First : public Numbered {
  using Numbered::Numbered;
};
class Second : public Numbered {
  using Numbered::Numbered;
};

TrainerOptions plain_options() {
  return {.model = std::make_shared<Linear>(),
          .args = {.output_dir = "", .num_train_epochs = 1, .save_strategy = SaveStrategy::kNo},
          .train_dataset = std::make_shared<Samples>(8),
          .eval_dataset = std::make_shared<Samples>(8),
          .accelerator = {.cpu = true, .threads = 1, .quiet = true}};
}

// Ends each epoch after two of its three steps.
class ShortEpochs : public TrainerCallback {
 public:
  void on_step_end(TrainerEvent& event) override {
    event.control.should_epoch_stop = event.state.global_step % 2 == 0;
  }
};

TEST(TrainerCallbacks, MayEndEpochsEarlyAndATrainingResumesAnywhere) {
  const TemporaryFolder folder;
  const auto batches_after = [&](const std::string& resume) {
    auto options = plain_options();
    options.args = {.output_dir = folder.file("out"),
                    .num_train_epochs = 3,
                    .per_device_train_batch_size = 4,
                    .save_steps = 1};
    options.train_dataset = std::make_shared<Samples>(12);
    options.callbacks = {std::make_shared<ShortEpochs>()};
    ScriptedTrainer trainer(options, json::object());
    trainer.train(resume);
    return trainer.batches;
  };
  const auto whole = batches_after("");
  ASSERT_EQ(whole.size(), 6U);
  for (std::size_t step = 1; step < whole.size(); ++step) {
    const auto rest = batches_after(folder.file("out/checkpoint-" + std::to_string(step)));
    const decltype(whole) expected(whole.begin() + static_cast<std::ptrdiff_t>(step), whole.end());
    EXPECT_EQ(rest, expected) << "after step " << step;
  }
}

// A perplexity that overflows is larger than that of every good model.
TEST(TrainerCallbacks, NeverTakeAModelForTheBestWhoseMetricIsNotFinite) {
  for (const double metric : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    const TemporaryFolder folder;
    auto options = plain_options();
    options.args = {.output_dir = folder.file("out"),
                    .num_train_epochs = 2,
                    .eval_strategy = IntervalStrategy::kEpoch,
                    .save_strategy = SaveStrategy::kEpoch,
                    .load_best_model_at_end = true,
                    .metric_for_best_model = "perplexity"};
    std::vector<double> metrics = {1.0, metric};  // of the second evaluation, then the first
    options.compute_metrics = [&](const EvalPrediction& /*prediction*/) -> Metrics {
      metrics.insert(metrics.begin(), metrics.back());
      metrics.pop_back();
      return {{"perplexity", metrics.front()}};
    };
    Trainer trainer(options);
    trainer.train();
    EXPECT_EQ(trainer.state().best_metric, 1.0);
  }
}

TEST(TrainerCallbacks, AreAddedAndRemovedByClassAsInTransformers) {
  Trainer trainer(plain_options());
  Calls called;
  auto popped = json::array();
  const auto& expected = hooks()["callbacks"];
  const auto operations = expected["operations"].get<std::vector<std::string>>();
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const auto number = " " + std::to_string(i);
    if (operations[i] == "add first") {
      trainer.add_callback(std::make_shared<First>("first" + number, called));
    } else if (operations[i] == "add second") {
      trainer.add_callback(std::make_shared<Second>("second" + number, called));
    } else if (operations[i] == "remove first") {
      EXPECT_TRUE(trainer.remove_callback<First>());
    } else if (operations[i] == "pop first") {
      const auto callback = trainer.pop_callback<First>();
      popped.push_back(callback == nullptr ? json() : json(callback->name));
    } else {
      ASSERT_EQ(operations[i], "pop second");
      popped.push_back(trainer.pop_callback<Second>()->name);
    }
  }
  trainer.train();
  EXPECT_EQ(popped, expected["popped"]);
  EXPECT_EQ(json(called), expected["called"]);
}

TEST(TrainerCallbacks, AnInstanceIsRemovedOnce) {
  Trainer trainer(plain_options());
  Calls called;
  const auto callback = std::make_shared<First>("first", called);
  trainer.add_callback(callback);
  EXPECT_EQ(trainer.pop_callback(*callback), callback);
  EXPECT_EQ(trainer.pop_callback(*callback), nullptr);
  EXPECT_FALSE(trainer.remove_callback(*callback));
  EXPECT_FALSE(trainer.remove_callback<ProgressCallback>()) << "a quiet Trainer has none";
  trainer.train();
  EXPECT_EQ(called, Calls());
}

// Removes itself, and adds another, in the middle of an event.
class Replaced : public TrainerCallback {
 public:
  explicit Replaced(Calls& called) : called_(called) {}
  void on_step_end(TrainerEvent& /*event*/) override {
    called_.emplace_back("replaced");
    trainer->add_callback(std::make_shared<First>("added", called_));
    trainer->remove_callback(*this);  // the Trainer's reference may be the last
  }
  Trainer* trainer = nullptr;

 private:
  Calls& called_;
};

class Stepped : public TrainerCallback {
 public:
  explicit Stepped(Calls& called) : called_(called) {}
  void on_step_end(TrainerEvent& /*event*/) override { called_.emplace_back("stepped"); }

 private:
  Calls& called_;
};

TEST(TrainerCallbacks, MayBeAddedAndRemovedWithinAnEvent) {
  Trainer trainer(plain_options());  // one step
  Calls called;
  auto replaced = std::make_shared<Replaced>(called);
  replaced->trainer = &trainer;
  trainer.add_callback(std::move(replaced));
  trainer.add_callback(std::make_shared<Stepped>(called));
  trainer.train();
  trainer.train();
  EXPECT_EQ(called, (Calls{"replaced", "stepped", "added", "stepped"}));
}

// --- labels ---

// The labels of the loss function, and whether the model got inputs besides x.
struct LossCalls {
  json labels = json::array();
  std::size_t inputs = 0;
};

class InputCounter : public Classifier {
 public:
  explicit InputCounter(LossCalls& calls) : calls_(calls) {}
  torch::Tensor forward(const Inputs& inputs) override {
    calls_.inputs = inputs.size();
    return Classifier::forward(inputs);
  }

 private:
  LossCalls& calls_;
};

LossCalls evaluated_with(std::vector<std::string> label_names) {
  LossCalls calls;
  auto options = plain_options();
  options.model = std::make_shared<InputCounter>(calls);
  options.args.label_names = std::move(label_names);
  options.data_collator = [](const Batch& batch) -> Inputs {
    return {{"x", batch.inputs.only()}, {"other", batch.targets + 1}, {"labels", batch.targets}};
  };
  options.compute_loss_func = [&calls](const torch::Tensor& outputs, const torch::Tensor& labels,
                                       const NumItems& items) {
    calls.labels.push_back(json_of(labels));
    return items.mean(outputs.sum());
  };
  Trainer(std::move(options)).evaluate();
  return calls;
}

TEST(TrainerLabels, TheDefaultLossTakesTheNameLabelsElseTheFirst) {
  const json targets = {0, 1, 2, 0, 1, 2, 0, 1};
  const json others = {1, 2, 3, 1, 2, 3, 1, 2};
  for (const auto& [names, labels, inputs] :
       {std::tuple(std::vector<std::string>{"labels"}, targets, 2U),
        std::tuple(std::vector<std::string>{"other", "labels"}, targets, 1U),
        std::tuple(std::vector<std::string>{"other"}, others, 2U)}) {
    const auto calls = evaluated_with(names);
    EXPECT_EQ(calls.labels, json::array({labels}));
    EXPECT_EQ(calls.inputs, inputs) << "labels are no inputs of the model";
  }
}

TEST(TrainerLabels, WithoutNamesThereIsNoDefaultLossButAPrediction) {
  auto options = plain_options();
  options.model = std::make_shared<Classifier>();
  options.args.label_names = {};
  Trainer trainer(std::move(options));
  const auto output = trainer.predict();
  EXPECT_EQ(output.predictions.size(0), 8);
  EXPECT_TRUE(output.label_ids.empty());
  EXPECT_EQ(find_metric(output.metrics, "test_loss"), nullptr);
  EXPECT_ERROR(trainer.train(), UsageError,
               "label_names: expected the name of the labels for the default loss, not set");
}

// Metrics may read them by pointer.
TEST(TrainerWithAGpu, GivesMetricsTheirTensorsInHostMemory) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  auto options = plain_options();
  options.accelerator.cpu = false;
  options.args.per_device_eval_batch_size = 3;
  options.model = std::make_shared<Classifier>();
  options.compute_metrics = [](const EvalPrediction& prediction) -> Metrics {
    const auto labels = prediction.label_ids.only();
    EXPECT_EQ(prediction.predictions.const_data_ptr<float>()[23], 14.0F);  // sample 7, class 2
    EXPECT_EQ(labels.const_data_ptr<std::int64_t>()[7], 1);
    return {{"right", accuracy(prediction).at("accuracy")}};
  };
  Trainer trainer(std::move(options));
  EXPECT_TRUE(trainer.accelerator().device().is_cuda());
  EXPECT_NE(find_metric(trainer.evaluate(), "eval_right"), nullptr);
}

// dataloader_pin_memory is true by default.
TEST(TrainerWithAGpu, PageLocksNoBatchesForTheCpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  auto options = plain_options();
  options.data_collator = [](const Batch& batch) {
    EXPECT_FALSE(batch.inputs.only().is_pinned() || batch.targets.is_pinned());
    return default_data_collator(batch);
  };
  Trainer(std::move(options)).train();
}

TEST(TrainerLabels, AccuracyTakesOneLabelName) {
  const auto scores = torch::tensor({{1.0, 0.0}, {1.0, 0.0}});
  const auto labels = torch::tensor({0, 1});
  EXPECT_EQ(accuracy({scores, labels}).at("accuracy"), 0.5);
  EXPECT_ERROR(accuracy({scores, {{"a", labels}, {"b", labels}}}), UsageError, "");
}

TEST(TrainerLabels, OfDifferentLengthsAreRefused) {
  auto options = plain_options();
  options.args.label_names = {"labels", "short"};
  options.data_collator = [](const Batch& batch) -> Inputs {
    return {{"x", batch.inputs.only()},
            {"labels", batch.targets},
            {"short", batch.targets.narrow(0, 0, 1)}};
  };
  Trainer trainer(std::move(options));
  EXPECT_ERROR(trainer.evaluate(), UsageError, "short");
}

// --- options ---

TEST(TrainerOptions, AnEmptyCollatorIsTheDefaultOne) {
  auto options = plain_options();
  options.data_collator = nullptr;
  Trainer trainer(std::move(options));
  EXPECT_NE(find_metric(trainer.evaluate(), "eval_loss"), nullptr);
}

TEST(TrainerOptions, AnOptimizerMayNotBeGivenAndMade) {
  const auto optimizer_of = [](const Model& model) {
    return std::make_unique<SGD>(model.parameters(), SgdOptions{.lr = 0.5});
  };
  auto options = plain_options();
  options.optimizers.optimizer = optimizer_of(*options.model);
  options.optimizer_init = optimizer_of;
  EXPECT_ERROR(Trainer(std::move(options)), UsageError, "Trainer: optimizers and optimizer_init");
}

// As short as in the source tutorial.
struct BasicTrainer : Trainer {
  using Trainer::Trainer;

  LossOutput compute_loss(Model& model, const Inputs& inputs, const NumItems& items) override {
    const auto outputs = model.forward(inputs.at("x"));
    const auto sum =
        torch::cross_entropy_loss(outputs, inputs.at("labels"), {}, at::Reduction::Sum);
    return {items.mean(sum), outputs};
  }
};

struct StopAfterFirst : TrainerCallback {
  void on_step_end(TrainerEvent& event) override { event.control.should_training_stop = true; }
};

TEST(TrainerOptions, ASubclassWithCollatorMetricsAndCallbackIsShort) {
  TrainingArguments args;
  args.output_dir = "";
  args.save_strategy = SaveStrategy::kNo;
  BasicTrainer trainer({.model = std::make_shared<Linear>(),
                        .args = args,
                        .train_dataset = std::make_shared<Samples>(80),
                        .eval_dataset = std::make_shared<Samples>(8),
                        .data_collator = [](const Batch& batch) -> Inputs {
                          return {{"x", batch.inputs.only()}, {"labels", batch.targets}};
                        },
                        .compute_metrics = [](const EvalPrediction& prediction) -> Metrics {
                          return {{"rows", prediction.predictions.size(0)}};
                        },
                        .callbacks = {std::make_shared<StopAfterFirst>()},
                        .accelerator = {.cpu = true, .threads = 1, .quiet = true}});
  EXPECT_EQ(trainer.train().global_step, 1);
  EXPECT_EQ(trainer.evaluate().at("eval_rows"), 8.0);
}

}  // namespace
}  // namespace ladder::scripted
