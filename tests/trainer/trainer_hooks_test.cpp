// SPDX-License-Identifier: Apache-2.0
// What a program may replace in a Trainer: hooks, functions, optimizers, callbacks, label names.
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ladder/armour/loss_guard.h"
#include "ladder/core/error.h"
#include "ladder/data/dataset.h"
#include "ladder/launch/signals.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/optim/sgd.h"
#include "ladder/trainer/progress_callback.h"
#include "ladder/trainer/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/scripted_trainer.h"
#include "tests/support/small_modules.h"
#include "tests/support/step_notes.h"
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
  auto options = options_with(training_arguments_from(arguments, "golden"), run["samples"][0],
                              run["samples"][1]);
  options.model = std::make_shared<Classifier>();
  options.args.output_dir = folder;
  options.callbacks = {std::make_shared<EventRecorder>(results.calls)};
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
      expected.insert(expected.end(), std::istream_iterator<std::string>(words), {});
    }
    EXPECT_EQ(results.calls, expected);
    EXPECT_EQ(results.collated, run["collated"]);
    auto rates = json::array();
    for (const auto& entry : trainer.state().log_history) {
      const auto rate = value_or_null(entry.values, "learning_rate");
      if (!rate.is_null()) rates.push_back(rate);
    }
    EXPECT_EQ(rates, run["rates"]);
    if (!run.contains("seen")) continue;
    EXPECT_EQ(results.seen, run["seen"]);
    EXPECT_EQ(results.predicted, run["predicted"]);
    ASSERT_EQ(results.losses.size(), run["losses"].size());
    for (std::size_t i = 0; i < results.losses.size(); ++i) {
      const auto& loss = run["losses"][i];
      EXPECT_EQ(results.losses[i].is_null(), loss.is_null());
      if (loss.is_null()) continue;
      EXPECT_NEAR(results.losses[i].get<double>(), loss.get<double>(), 1e-6);
    }
  }
}

// --- callbacks ---

// Notes that a training begins. Each number is a class of its own.
template <int kNumber>
class Named : public TrainerCallback {
 public:
  Named(std::string text, Calls& called) : name(std::move(text)), called_(called) {}
  void on_train_begin(TrainerEvent& /*event*/) override { called_.push_back(name); }
  const std::string name;

 private:
  Calls& called_;
};
using First = Named<1>;
using Second = Named<2>;

class AfterSteps : public TrainerCallback {
 public:
  using Act = std::function<void(TrainerEvent&)>;
  explicit AfterSteps(Act act) : act_(std::move(act)) {}
  void on_step_end(TrainerEvent& event) override { act_(event); }

 private:
  Act act_;
};

TrainerOptions plain_options() {
  return options_with({.output_dir = "", .num_train_epochs = 1, .save_strategy = SaveStrategy::kNo},
                      8, 8);
}

// Each epoch ends after two of its three steps.
TEST(TrainerCallbacks, MayEndEpochsEarlyAndATrainingResumesAnywhere) {
  const TemporaryFolder folder;
  const auto batches_after = [&](const std::string& resume) {
    auto options = options_with({.output_dir = folder.file("out"),
                                 .num_train_epochs = 3,
                                 .per_device_train_batch_size = 4,
                                 .save_steps = 1},
                                12, 8);
    options.callbacks = {std::make_shared<AfterSteps>([](TrainerEvent& event) {
      event.control.should_epoch_stop = event.state.global_step % 2 == 0;
    })};
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

TEST(TrainerCallbacks, ACheckpointHasTheAccumulationAndPrecisionOfTheEnvironment) {
  setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2", 1);
  setenv("ACCELERATE_MIXED_PRECISION", "bf16", 1);
  const Trainer trainer(plain_options());
  unsetenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
  unsetenv("ACCELERATE_MIXED_PRECISION");
  EXPECT_EQ(trainer.args().gradient_accumulation_steps, 2);
  EXPECT_TRUE(trainer.args().bf16);
  EXPECT_FALSE(trainer.args().fp16);
}

// Checkpoint 2 is after the first of two epochs with batches of 4. As in transformers, its steps
// count the batches of the run that resumes.
TEST(TrainerCallbacks, AResumeWithOtherBatchesGoesOnAtTheBatchOfItsStep) {
  const TemporaryFolder folder;
  // Batches, steps at the end, and the skipped batches of the banner.
  using Resumed = std::tuple<std::size_t, std::int64_t, std::string>;
  const auto resumed = [&](int batch_size, const std::string& checkpoint) -> Resumed {
    auto options = options_with({.output_dir = folder.file("out"),
                                 .num_train_epochs = 2,
                                 .per_device_train_batch_size = batch_size,
                                 .save_strategy = SaveStrategy::kEpoch},
                                8, 8);
    options.accelerator.quiet = false;
    ScriptedTrainer trainer(std::move(options), json::object());
    testing::internal::CaptureStderr();
    const auto steps = trainer.train(checkpoint).global_step;
    const auto banner = testing::internal::GetCapturedStderr();
    const auto begin = banner.find("skip the first ");
    const auto end = banner.find(" in the first epoch");
    return {trainer.batches.size(), steps,
            begin == std::string::npos ? "" : banner.substr(begin, end - begin)};
  };
  const auto checkpoint = folder.file("out/checkpoint-2");
  EXPECT_EQ(resumed(4, ""), Resumed(4, 4, ""));
  EXPECT_EQ(resumed(4, checkpoint),
            Resumed(2, 4, "skip the first 1 epochs then the first 0 batches"));
  EXPECT_EQ(resumed(2, checkpoint),
            Resumed(6, 8, "skip the first 0 epochs then the first 2 batches"));
  EXPECT_EQ(resumed(8, checkpoint),
            Resumed(0, 2, "skip the first 2 epochs then the first 0 batches"));
}

TEST(TrainerCallbacks, AResumeAfterAnEpochThatEndedEarlyWarnsThatStepsAndEpochsDisagree) {
  const TemporaryFolder folder;
  const auto warning_of = [&](const std::string& checkpoint) {
    testing::internal::CaptureStderr();
    auto options = options_with({.output_dir = folder.file("out"),
                                 .num_train_epochs = 2,
                                 .per_device_train_batch_size = 4,
                                 .save_strategy = SaveStrategy::kEpoch},
                                8, 8);
    options.callbacks = {std::make_shared<AfterSteps>(
        [](TrainerEvent& event) { event.control.should_epoch_stop = true; })};
    Trainer(std::move(options)).train(checkpoint);
    const auto messages = testing::internal::GetCapturedStderr();
    const auto begin = messages.find("warning: resume: ");
    return begin == std::string::npos ? ""
                                      : messages.substr(begin, messages.find(';', begin) - begin);
  };
  EXPECT_EQ(warning_of(""), "");
  EXPECT_EQ(
      warning_of(folder.file("out/checkpoint-1")),
      "warning: resume: the checkpoint has 1 steps before this point of epoch 2, this run would "
      "have 2: it ends after step 4 or epoch 2, whichever is first");
}

// Two steps, each with an evaluation and a checkpoint. The evaluations have these metrics in turn.
TrainerOptions evaluating_options(const std::string& folder, std::vector<double> metrics) {
  auto options = options_with({.output_dir = folder,
                               .num_train_epochs = 2,
                               .eval_strategy = IntervalStrategy::kEpoch,
                               .save_strategy = SaveStrategy::kEpoch,
                               .load_best_model_at_end = true,
                               .metric_for_best_model = "perplexity"},
                              8, 8);
  options.compute_metrics = [metrics, i = std::size_t{0}](auto&) mutable -> Metrics {
    return {{"perplexity", metrics[i++ % metrics.size()]}};
  };
  return options;
}

TEST(TrainerCallbacks, OfAMetricThatTheEvaluationLacksNameThoseThatThereAre) {
  const TemporaryFolder folder;
  auto options = evaluating_options(folder.file("out"), {1.0});
  options.args.metric_for_best_model = "f1";
  options.args.greater_is_better = true;
  EXPECT_ERROR(Trainer(options).train(), UsageError,
               "metric_for_best_model: expected one of eval_loss, eval_perplexity, ");
  EXPECT_ERROR(Trainer(options).train(), UsageError,
               "got 'eval_f1'; hint: set it to one of these, or return it from compute_metrics");
}

TEST(TrainerObservers, SeeTheStepsAsThoseOfAMonitorAndEndTheTraining) {
  const auto train = [](Trainer&& trainer, const std::shared_ptr<StepObserver>& observer) {
    trainer.observe(observer);
    trainer.train();
  };
  auto options = plain_options();
  options.args.per_device_train_batch_size = 4;
  options.args.gradient_accumulation_steps = 2;
  const auto whole = std::make_shared<StepNotes>();
  train(Trainer(options), whole);
  Calls notes = {"epoch 1/1, 2 batches after step 0",
                 "part of step 1, batch 1, sample 4",
                 "step 1, batch 2, sample 8",
                 "end of epoch",
                 "pause",
                 "end"};
  EXPECT_EQ(whole->notes, notes);
  options.args.num_train_epochs = 2;
  const auto stopped = std::make_shared<StepNotes>(/*last_step=*/2);
  options.args.gradient_accumulation_steps = 1;
  EXPECT_THROW(train(Trainer(options), stopped), StoppedBySignal);
  notes = {"epoch 1/2, 2 batches after step 0", "step 1, batch 1, sample 4",
           "step 2, batch 2, sample 8", "interrupt", "end of epoch"};
  EXPECT_EQ(stopped->notes, notes);
  const auto within = std::make_shared<StepNotes>(/*last_step=*/1);
  EXPECT_THROW(train(Trainer(options), within), StoppedBySignal);
  notes = {"epoch 1/2, 2 batches after step 0", "step 1, batch 1, sample 4", "interrupt"};
  EXPECT_EQ(within->notes, notes);
  const OneWeight model;
  EXPECT_ERROR(train(ScriptedTrainer(options, {{"train_losses", {"NaN"}}}),
                     std::make_shared<LossGuard>(model, RunSetup{})),
               NumericError, "epoch 1, step 1: expected a finite loss");
}

TEST(TrainerCallbacks, CannotSaveWithoutAFolder) {
  auto options = plain_options();
  options.callbacks = {
      std::make_shared<AfterSteps>([](TrainerEvent& event) { event.control.should_save = true; })};
  EXPECT_ERROR(Trainer(options).train(), UsageError, "should_save: expected output_dir");
}

// A perplexity that overflows is larger than that of every good model.
TEST(TrainerCallbacks, NeverTakeAModelForTheBestWhoseMetricIsNotFinite) {
  for (const double metric : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    const TemporaryFolder folder;
    Trainer trainer(evaluating_options(folder.file("out"), {metric, 1.0}));
    trainer.train();
    EXPECT_EQ(trainer.state().best_metric, 1.0);
  }
}

TEST(TrainerCallbacks, AreAddedAndRemovedByClassAsInTransformers) {
  Trainer trainer(plain_options());
  Calls called;
  auto popped = json::array();
  const auto& expected = hooks()["callbacks"];
  int number = -1;
  for (const std::string operation : expected["operations"]) {
    const auto name = operation.substr(operation.find(' ') + 1) + " " + std::to_string(++number);
    const auto pop = [&](const auto& callback) {
      popped.push_back(callback == nullptr ? json() : json(callback->name));
    };
    if (operation == "add first") {
      trainer.add_callback(std::make_shared<First>(name, called));
    } else if (operation == "add second") {
      trainer.add_callback(std::make_shared<Second>(name, called));
    } else if (operation == "remove first") {
      EXPECT_TRUE(trainer.remove_callback<First>());
    } else if (operation == "pop first") {
      pop(trainer.pop_callback<First>());
    } else {
      ASSERT_EQ(operation, "pop second");
      pop(trainer.pop_callback<Second>());
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

TEST(TrainerCallbacks, MayBeAddedAndRemovedWithinAnEvent) {
  Trainer trainer(plain_options());  // one step
  Calls called;
  std::weak_ptr<TrainerCallback> replaced;
  const auto replace = [&](TrainerEvent& /*event*/) {
    called.emplace_back("replaced");
    trainer.add_callback(std::make_shared<First>("added", called));
    trainer.remove_callback(*replaced.lock());  // the Trainer's reference may be the last
  };
  auto callback = std::make_shared<AfterSteps>(replace);
  replaced = callback;
  trainer.add_callback(std::move(callback));
  trainer.add_callback(std::make_shared<AfterSteps>(
      [&](TrainerEvent& /*event*/) { called.emplace_back("stepped"); }));
  trainer.train();
  trainer.train();
  EXPECT_EQ(called, (Calls{"replaced", "stepped", "added", "stepped"}));
}

TEST(TrainerCallbacks, AProgressBarMayBeginWithinATraining) {
  auto options = plain_options();
  options.args.max_steps = 2;
  Trainer trainer(std::move(options));
  trainer.add_callback(std::make_shared<AfterSteps>([&](TrainerEvent& event) {
    if (event.state.global_step == 1) trainer.add_callback(std::make_shared<ProgressCallback>());
  }));
  EXPECT_EQ(trainer.train().global_step, 2);
}

struct Stateful : TrainerCallback {
  explicit Stateful(int value) : number(value) {}
  std::string state_name() const override { return "Stateful"; }
  json state_dict() const override { return {{"number", number}}; }
  void load_state_dict(const json& state, std::string_view /*origin*/) override {
    number = state.at("number");
  }
  int number;
};

TEST(TrainerCallbacks, OfOneNameHaveAStateEach) {
  CallbackHandler saved;
  CallbackHandler loaded;
  for (const int number : {1, 2}) {
    saved.add(std::make_shared<Stateful>(number));
    loaded.add(std::make_shared<Stateful>(0));
  }
  Trainer trainer(plain_options());
  loaded.load_state_dicts(saved.state_dicts(), "a state", trainer.accelerator().log());
  EXPECT_EQ(loaded.state_dicts(), saved.state_dicts());
}

// --- resume ---

TEST(TrainerResume, NeedsTheStateOfTheOptimizerAndTheSameAccumulation) {
  const TemporaryFolder folder;
  auto options = evaluating_options(folder.file("out"), {1.0});
  Trainer(options).train();
  options.args.gradient_accumulation_steps = 2;
  EXPECT_ERROR(Trainer(options).train(folder.file("out/checkpoint-1")), DataError,
               "gradient_accumulation_steps", "resume with the value of the checkpoint");
  options = evaluating_options(folder.file("models"), {1.0});
  options.args.save_only_model = true;
  Trainer(options).train();
  EXPECT_ERROR(Trainer(options).train(folder.file("models/checkpoint-1")), DataError,
               "a checkpoint with optimizer state");
}

TEST(TrainerResume, GoesOnWithoutABestCheckpointThatWasRemoved) {
  const TemporaryFolder folder;
  auto options = evaluating_options(folder.file("out"), {1.0});
  Trainer(options).train();
  std::filesystem::remove_all(folder.file("out/checkpoint-1"));
  options.args.num_train_epochs = 3;
  Trainer trainer(options);
  EXPECT_EQ(trainer.train(folder.file("out/checkpoint-2")).global_step, 3);
  EXPECT_EQ(trainer.state().best_model_checkpoint, std::nullopt);
}

// --- labels ---

struct InputCounter : Classifier {
  torch::Tensor forward(const Inputs& inputs) override {
    count = inputs.size();
    return Classifier::forward(inputs);
  }
  std::size_t count = 0;
};

TEST(TrainerLabels, TheDefaultLossTakesTheNameLabelsElseTheFirst) {
  const json targets = {0, 1, 2, 0, 1, 2, 0, 1};
  const json others = {1, 2, 3, 1, 2, 3, 1, 2};
  for (const auto& [names, expected, inputs] :
       {std::tuple(Calls{"labels"}, targets, 2U), std::tuple(Calls{"other", "labels"}, targets, 1U),
        std::tuple(Calls{"other"}, others, 2U)}) {
    auto options = plain_options();
    const auto model = std::make_shared<InputCounter>();
    options.model = model;
    options.args.label_names = names;
    options.data_collator = [](const Batch& batch) -> Inputs {
      return {{"x", batch.inputs.only()}, {"other", batch.targets + 1}, {"labels", batch.targets}};
    };
    auto seen = json::array();
    options.compute_loss_func = [&seen](const torch::Tensor& outputs, const torch::Tensor& labels,
                                        const NumItems& items) {
      seen.push_back(json_of(labels));
      return items.mean(outputs.sum());
    };
    Trainer(std::move(options)).evaluate();
    EXPECT_EQ(seen, json::array({expected}));
    EXPECT_EQ(model->count, inputs) << "labels are no inputs of the model";
  }
}

// As torch's own mean, whatever the number of labels per sample.
TEST(TrainerLabels, OfTokensHaveTheMeanOverAllAsTheDefaultLoss) {
  struct Tagger : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& x) {  // [N, 4] to [N, 3 classes, 4]
      return torch::stack({x, x * x, -x}, 1) * weight;
    }
    torch::Tensor weight = register_parameter("weight", torch::ones({1}));
  };
  const auto x = torch::arange(24).view({6, 4}) / 10.0;
  const auto labels = torch::arange(24).view({6, 4}).remainder(3);
  const auto expected = torch::cross_entropy_loss(Tagger().forward(x), labels).item<double>();
  auto options = plain_options();
  options.model = std::make_shared<Tagger>();
  options.eval_dataset = std::make_shared<TensorDataset>(x, labels);
  options.compute_metrics = nullptr;
  EXPECT_NEAR(Trainer(std::move(options)).evaluate().at("eval_loss"), expected, 1e-6);
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

TEST(Trainer, MakesAGraphOfStepsThatAGraphCanRepeat) {
  auto options = plain_options();
  options.args.cuda_graph = true;
  options.model = std::make_shared<Classifier>();
  EXPECT_ERROR(const Trainer trainer(options), UsageError, "cuda_graph: needs a GPU");
}

TEST(TrainerWithAGpu, MakesNoGraphOfStepsThatChange) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  for (const char* what : {"fp16", "accumulation", "sums", "debug"}) {
    auto options = plain_options();
    options.accelerator.cpu = false;
    options.model = std::make_shared<Classifier>();
    options.args.cuda_graph = true;
    options.args.fp16 = what == std::string("fp16");
    options.args.gradient_accumulation_steps = what == std::string("accumulation") ? 2 : 1;
    if (what == std::string("debug")) options.accelerator.debug = true;
    if (what == std::string("sums")) {
      options.args.sums = "exact";
      options.args.accelerator_config = {.split_batches = true, .even_batches = false};
    }
    EXPECT_ERROR(const Trainer trainer(options), UsageError,
                 "cuda_graph: fp16, gradient accumulation");
  }
  auto options = plain_options();
  options.accelerator.cpu = false;
  options.accelerator.debug = false;
  options.model = std::make_shared<Classifier>();
  options.args.cuda_graph = true;
  EXPECT_NO_THROW(const Trainer trainer(options));
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

TEST(TrainerLabels, ThatNoInputHasAreAWarningInsteadOfALoss) {
  auto options = plain_options();
  options.model = std::make_shared<Classifier>();
  options.args.label_names = {"absent"};
  Trainer trainer(std::move(options));
  testing::internal::CaptureStderr();
  const auto metrics = trainer.evaluate();
  const auto messages = testing::internal::GetCapturedStderr();
  EXPECT_EQ(find_metric(metrics, "eval_loss"), nullptr);
  EXPECT_NE(messages.find("warning: no eval_loss: the inputs have no absent"), std::string::npos)
      << messages;
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

TEST(TrainerOptions, AnEmptyCollatorIsTheDefaultOneAndMetricsGetTheirPrefixOnce) {
  auto options = plain_options();
  options.data_collator = nullptr;
  options.compute_metrics = [](const EvalPrediction& /*prediction*/) -> Metrics {
    return {{"own", 1.0}, {"eval_other", 2.0}};
  };
  const auto metrics = Trainer(std::move(options)).evaluate();
  for (const char* name : {"eval_loss", "eval_own", "eval_other"}) {
    EXPECT_EQ(metrics.count(name), 1U) << name;
  }
}

TEST(TrainerOptions, AutoNeedsAFolder) {
  EXPECT_ERROR(Trainer(plain_options()).train("auto"), UsageError,
               "resume_from_checkpoint: expected output_dir");
}

TEST(TrainerOptions, RefuseNullPointers) {
  auto options = plain_options();
  options.callbacks = {nullptr};
  EXPECT_ERROR(Trainer(std::move(options)), UsageError, "callbacks: expected a callback, not set");
  EXPECT_ERROR(ModelPointer(std::shared_ptr<torch::nn::LinearImpl>()), UsageError,
               "model: expected a module, not set");
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

}  // namespace
}  // namespace ladder::scripted
