// SPDX-License-Identifier: Apache-2.0
// A Trainer in several processes: as one alone; with sums exact, to the last bit.
#include <gtest/gtest.h>
#include <torch/nn/modules/rnn.h>
#include <torch/types.h>

#include <cmath>
#include <csignal>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ladder/accelerate/function_launcher.h"
#include "ladder/armour/checkpoint_folder.h"
#include "ladder/core/error.h"
#include "ladder/data/dataset.h"
#include "ladder/launch/signals.h"
#include "ladder/trainer/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/scripted_trainer.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

using nlohmann::json;
using scripted::Samples;

// 8 batches an epoch: of 5 samples, 3 and 2 with two processes; the last has 2.
TrainingArguments arguments(const TemporaryFolder& folder) {
  TrainingArguments args;
  args.output_dir = folder.file("out");
  args.num_train_epochs = 2;
  args.per_device_train_batch_size = 5;
  args.per_device_eval_batch_size = 4;
  args.gradient_accumulation_steps = 3;
  args.accelerator_config = {.split_batches = true, .even_batches = false};
  args.optim = OptimizerName::kSgd;  // AdamW makes more of a rounding difference
  args.learning_rate = 0.01;
  args.logging_steps = 2;
  args.eval_strategy = IntervalStrategy::kEpoch;
  args.save_strategy = SaveStrategy::kEpoch;
  args.load_best_model_at_end = true;
  return args;
}

// Notes the names of some events, and their steps.
class Events : public scripted::EventNoter {
 public:
  explicit Events(json& names) : names_(names) {}

 private:
  void note(const std::string& name, TrainerEvent& event) override {
    for (const char* noted : {"step_end", "substep_end", "log", "evaluate", "save", "train_end"}) {
      if (name == noted) names_.push_back({name, event.state.global_step});
    }
  }
  json& names_;
};

TrainerOptions options_of(const TrainingArguments& args,
                          std::vector<std::shared_ptr<TrainerCallback>> callbacks = {}) {
  auto options = scripted::options_with(args, 37, 11);
  options.callbacks = std::move(callbacks);
  return options;
}

template <typename Number>
std::vector<Number> values_of(const torch::Tensor& tensor) {
  const auto flat = tensor.to(torch::kCPU).contiguous().flatten();
  return {flat.data_ptr<Number>(), flat.data_ptr<Number>() + flat.numel()};
}

json logged(const Trainer& trainer, std::initializer_list<const char*> names) {
  json seen;
  for (const auto& entry : trainer.state().log_history) {
    for (const char* name : names) {
      const double* const value = find_metric(entry.values, name);
      if (value != nullptr) seen[name].push_back(*value);
    }
  }
  return seen;
}

// What `fn` returns in each of the processes.
using InProcess = std::function<json(const TemporaryFolder&)>;
std::vector<json> seen_by(int processes, const TemporaryFolder& folder, const InProcess& fn) {
  const auto name_of = [](int rank) { return "rank" + std::to_string(rank); };
  expect_well(
      end_of_ranks(processes, [&](int rank) { folder.write(name_of(rank), fn(folder).dump()); }));
  std::vector<json> seen;
  for (int rank = 0; rank < processes; ++rank) {
    seen.push_back(json::parse(folder.read(name_of(rank))));
  }
  return seen;
}

// What all processes have alike.
json seen_by_all(int processes, const InProcess& fn) {
  const TemporaryFolder folder;
  const auto seen = seen_by(processes, folder, fn);
  for (const auto& other : seen) EXPECT_EQ(other, seen[0]);
  return seen[0];
}

void expect_near(const json& got, const json& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto value = expected[i].get<double>();
    EXPECT_NEAR(got[i].get<double>(), value, 1e-5 * (1.0 + std::abs(value))) << i;
  }
}

TEST(TrainerOnTwo, BothSeeWhatOneAloneSees) {
  const auto train = [](const TemporaryFolder& folder) {
    json events;
    auto options = options_of(arguments(folder), {std::make_shared<Events>(events)});
    options.compute_metrics = accuracy;
    Trainer trainer(options);
    trainer.train();
    const auto output = trainer.predict();
    auto seen = logged(trainer, {"loss", "grad_norm", "eval_loss", "eval_accuracy"});
    seen["predictions"] = values_of<float>(output.predictions);
    seen["weights"] = values_of<float>(trainer.model().parameters()[0]);
    return json({{"near", seen},
                 {"events", events},
                 {"labels", values_of<std::int64_t>(output.label_ids.only())},
                 {"checkpoints", list_checkpoints(folder.file("out"), "checkpoint-").size()}});
  };
  const auto got = seen_by_all(2, train);
  const auto expected = seen_by_all(1, train);
  EXPECT_EQ(got["events"], expected["events"]);
  EXPECT_EQ(got["labels"], json({0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1})) << "each once, in order";
  EXPECT_EQ(got["checkpoints"], 2);
  ASSERT_EQ(got["near"].size(), 6U);
  for (const auto& [name, values] : expected["near"].items()) {  // sums are made in other orders
    SCOPED_TRACE(name);
    expect_near(got["near"][name], values);
  }
}

// Reads LibTorch's LSTM, without a class of this library.
struct LastStateImpl : torch::nn::Module {
  LastStateImpl() { lstm = register_module("lstm", torch::nn::LSTM(4, 4)); }
  torch::Tensor forward(const torch::Tensor& x) {
    return std::get<0>(lstm->forward(x.unsqueeze(0))).squeeze(0);
  }
  torch::nn::LSTM lstm{nullptr};
};
TORCH_MODULE(LastState);

// Its loss needs no labels.
struct ReconstructingTrainer : Trainer {
  using Trainer::Trainer;
  LossOutput compute_loss(Model& model, const Inputs& inputs, const NumItems& items) override {
    const auto& x = inputs.at("x");
    const auto outputs = model.forward(x);
    return {items.mean((outputs - x * 0.01).square().sum()), outputs};
  }
};

template <typename TrainerClass>
json train_module(const TemporaryFolder& folder, bool with_labels) {
  torch::manual_seed(1);
  LastState net;
  const auto all = Samples(7).get_batch(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6});
  auto options = options_of(arguments(folder));
  options.model = net;
  options.train_dataset = options.eval_dataset = std::make_shared<TensorDataset>(
      all.inputs, with_labels ? all.targets.remainder(4) : torch::Tensor());
  TrainerClass trainer(std::move(options));
  trainer.train();
  auto seen = values_of<float>(flat_weights(*net));
  seen.push_back(static_cast<float>(trainer.evaluate().at("eval_loss")));
  return seen;
}

TEST(TrainerOnTwo, TrainsAModuleOfLibTorchAlsoWithoutLabels) {
  for (const bool with_labels : {true, false}) {
    const auto train = [&](const TemporaryFolder& folder) {
      return with_labels ? train_module<Trainer>(folder, true)
                         : train_module<ReconstructingTrainer>(folder, false);
    };
    expect_near(seen_by_all(2, train), seen_by_all(1, train));
  }
}

// Their weights would differ without an error.
TEST(TrainerOnTwo, RefuseArgumentsThatDiffer) {
  const TemporaryFolder folder;
  const auto construct = [&] {
    auto args = arguments(folder);
    const bool second = getenv("RANK") == std::string("1");
    args.dataloader_num_workers = second ? 1 : 0;  // of one process
    if (second) args.learning_rate = 0.5;
    EXPECT_ERROR(Trainer(scripted::options_with(args, 37, 11)), DistributedError,
                 "learning_rate 0.");
    if (testing::Test::HasFailure()) throw std::runtime_error("no error, or another one");
  };
  EXPECT_NO_THROW(function_launcher(construct, std::tuple<>(), {.num_processes = 2}));
}

// Asks the second of two processes to stop in the last step of the first epoch.
class Stopper : public TrainerCallback {
 public:
  void on_step_end(TrainerEvent& event) override {
    if (!event.state.is_world_process_zero && event.state.global_step == 3) std::raise(SIGTERM);
  }
};

class EndOfEpoch : public testing::TestWithParam<SaveStrategy> {};
INSTANTIATE_TEST_SUITE_P(TrainerOnTwo, EndOfEpoch,
                         testing::Values(SaveStrategy::kNo, SaveStrategy::kEpoch));

TEST_P(EndOfEpoch, ToldToStopInItsLastStepTheyEndItAndSaveOnce) {
  const auto seen = seen_by_all(2, [](const TemporaryFolder& folder) {
    auto args = arguments(folder);
    args.load_best_model_at_end = false;
    args.save_strategy = GetParam();
    args.save_only_model = GetParam() == SaveStrategy::kNo;  // the save of the stop is complete
    json events;
    Trainer trainer(
        options_of(args, {std::make_shared<Events>(events), std::make_shared<Stopper>()}));
    EXPECT_THROW(trainer.train(), StoppedBySignal);
    const json last = {events[events.size() - 2], events.back()};
    trainer.train(folder.file("out/checkpoint-3"));
    return json({{"last", last}, {"end", trainer.state().global_step}});
  });
  EXPECT_EQ(seen["last"], json({{"evaluate", 3}, {"save", 3}}));
  EXPECT_EQ(seen["end"], 6);
}

TEST(TrainerOnTwo, AutoResumesFromTheNewestIntactCheckpointOrStartsAnew) {
  const TemporaryFolder folder;
  const auto expect_steps = [&](int first, int last) {
    const auto seen = seen_by(2, folder, [](const TemporaryFolder& shared) {
      json events;
      Trainer trainer(options_of(arguments(shared), {std::make_shared<Events>(events)}));
      trainer.train("auto");
      return json({events[0][1], trainer.state().global_step});
    });
    EXPECT_EQ(seen, (std::vector<json>(2, {first, last})));
  };
  expect_steps(0, 6);
  folder.write("out/checkpoint-6/model.safetensors", "damaged");
  expect_steps(3, 6);
}

// Trains in two processes. Returns the error of the first, or "".
std::string end_of_training(const TemporaryFolder& folder, const TrainingArguments& args,
                            const std::string& resume = "") {
  return seen_by(2, folder, [&](const TemporaryFolder& /*folder*/) -> json {
    Trainer trainer(options_of(args));
    try {
      trainer.train(resume);
    } catch (const UsageError& refused) {
      return refused.what();
    } catch (const DistributedError&) {  // of the other process
    }
    return "";
  })[0];
}

std::vector<std::int64_t> numbers_in(const TemporaryFolder& folder) {
  std::vector<std::int64_t> numbers;
  for (const auto& checkpoint : list_checkpoints(folder.file("out"), "checkpoint-")) {
    numbers.push_back(checkpoint.number);
  }
  return numbers;
}

TEST(TrainerOnTwo, CheckpointsOfAnotherRunAreRefusedOrRemoved) {
  using Numbers = std::vector<std::int64_t>;
  const TemporaryFolder folder;
  const auto out = folder.file("out");
  const auto first = arguments(folder);
  EXPECT_EQ(end_of_training(folder, first), "");
  EXPECT_EQ(end_of_training(folder, first), "") << "the same again";
  auto unevaluated = first;
  unevaluated.logging_steps = 1;
  unevaluated.eval_strategy = IntervalStrategy::kNo;
  unevaluated.load_best_model_at_end = false;
  EXPECT_EQ(end_of_training(folder, unevaluated), "") << "it ends with the same weights";
  const auto weights = folder.read("out/checkpoint-3/model.safetensors");
  auto second = first;
  second.learning_rate = 0.02;
  second.num_train_epochs = 1;
  const auto refusal = "output_dir " + out + ": " + out + "/checkpoint-3 is of another run: ";
  EXPECT_TRUE(end_of_training(folder, second)
                  .starts_with(refusal + "learning_rate is 0.01 there, and 0.02 here; hint: "));
  EXPECT_TRUE(end_of_training(folder, second, "auto").starts_with(refusal)) << "none is named";
  EXPECT_EQ(folder.read("out/checkpoint-3/model.safetensors"), weights);
  EXPECT_EQ(numbers_in(folder), (Numbers{3, 6}));
  second.num_train_epochs = 3;
  EXPECT_EQ(end_of_training(folder, second, out + "/checkpoint-6"), "") << "it goes on";
  second.num_train_epochs = 1;
  second.save_strategy = SaveStrategy::kNo;
  second.load_best_model_at_end = false;
  EXPECT_EQ(end_of_training(folder, second), "") << "it saves none";
  EXPECT_EQ(numbers_in(folder), (Numbers{3, 6, 9}));
  second.save_strategy = SaveStrategy::kEpoch;
  second.overwrite_output_dir = true;
  EXPECT_EQ(end_of_training(folder, second), "");
  EXPECT_EQ(numbers_in(folder), (Numbers{3}));
}

// One process alone cannot compute its loss.
class FailingTrainer : public Trainer {
 public:
  using Trainer::Trainer;

 protected:
  LossOutput compute_loss(Model& model, const Inputs& inputs, const NumItems& items) override {
    if (state().global_step == 4 && accelerator().process_index() == 1) {
      throw DataError::missing_file("sample", "none");
    }
    return Trainer::compute_loss(model, inputs, items);
  }
};

TEST(TrainerOnTwo, WhenOneFailsAllEndAndCheckpointsAreWhole) {
  const TemporaryFolder folder;
  const auto fail = [&] { FailingTrainer(options_of(arguments(folder))).train(); };
  EXPECT_ERROR(function_launcher(fail, std::tuple<>(), {.num_processes = 2}), ChildError, "rank 1");
  const auto checkpoints = list_checkpoints(folder.file("out"), "checkpoint-");
  ASSERT_EQ(checkpoints.size(), 1U);
  EXPECT_EQ(checkpoints[0].number, 3);
  open_checkpoint(folder.file("out/checkpoint-3"));
}

// --- sums exact ---

// Points around three centres, as floats of which no sum is exact.
class Points : public Dataset {
 public:
  explicit Points(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto number =
        torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), torch::kInt64);
    const auto phase = number.to(torch::kFloat32).unsqueeze(1) * torch::tensor({0.1F, 0.7F, 2.1F});
    const auto x = torch::cat({phase.sin(), torch::ones({number.size(0), 1})}, 1);
    return {.inputs = x, .targets = (number * number) % 3};
  }

 private:
  std::int64_t size_;
};

// 5 batches of 8 samples, of which the last has 5, in windows of 2.
TrainingArguments exact_arguments() {
  TrainingArguments args;
  args.num_train_epochs = 6;
  args.per_device_train_batch_size = 8;
  args.per_device_eval_batch_size = 6;
  args.gradient_accumulation_steps = 2;
  args.accelerator_config = {.split_batches = true, .even_batches = false};
  args.learning_rate = 0.3;
  args.lr_scheduler_type = SchedulerType::kReduceLrOnPlateau;
  args.lr_scheduler_kwargs = R"({"patience": 0, "threshold": 0.01})";
  args.max_grad_norm = 0.2;
  args.logging_steps = 2;
  args.eval_strategy = IntervalStrategy::kEpoch;
  args.save_strategy = SaveStrategy::kNo;
  args.sums = "exact";
  args.micro_batch = 2;
  return args;
}

struct ExactSetup {
  int processes = 1;
  int threads = 1;
  TrainingArguments args = exact_arguments();
};

// All that is logged, but for the speed, and the weights at the end.
json training_of(const ExactSetup& setup) {
  return seen_by_all(setup.processes, [&](const TemporaryFolder& /*folder*/) {
    auto options = options_of(setup.args);
    options.train_dataset = std::make_shared<Points>(37);
    options.eval_dataset = std::make_shared<Points>(23);
    options.compute_metrics = accuracy;
    options.accelerator.threads = setup.threads;
    Trainer trainer(std::move(options));
    const double training_loss = trainer.train().training_loss;
    auto seen =
        logged(trainer, {"loss", "grad_norm", "learning_rate", "eval_loss", "eval_accuracy"});
    seen["training_loss"] = training_loss;
    seen["weights"] = values_of<float>(flat_weights(trainer.model()));
    return seen;
  });
}

TEST(ExactSumsOfTrainer, GiveTheSameLossesAndWeightsForAnyProcessesAndThreads) {
  const auto one = training_of({});
  EXPECT_EQ(one["eval_loss"].size(), 6U);
  EXPECT_LT(one["learning_rate"].back(), 0.3) << "no plateau";
  for (const auto& [processes, threads] : {std::pair(2, 1), {3, 1}, {1, 2}, {2, 2}}) {
    SCOPED_TRACE(testing::Message() << processes << " processes, " << threads << " threads");
    EXPECT_EQ(training_of({.processes = processes, .threads = threads}), one);
  }
}

// The loss is that of sums in float, to their precision.
TEST(ExactSumsOfTrainer, LogTheLossesOfSumsInFloat) {
  ExactSetup exact = {.processes = 2};
  exact.args.num_train_epochs = 1;
  ExactSetup fast;
  fast.args.num_train_epochs = 1;
  fast.args.sums = "fast";
  fast.args.micro_batch = TrainingArguments{}.micro_batch;
  const auto expected = training_of(fast);
  const auto got = training_of(exact);
  for (const char* name : {"loss", "eval_loss", "grad_norm"})
    expect_near(got[name], expected[name]);
}

}  // namespace
}  // namespace ladder
