// SPDX-License-Identifier: Apache-2.0
// A Trainer in two processes that function_launcher starts.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/nn/modules/rnn.h>
#include <torch/types.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "ladder/accelerate/function_launcher.h"
#include "ladder/checkpoint/checkpoint_folder.h"
#include "ladder/core/error.h"
#include "ladder/data/tensor_dataset.h"
#include "ladder/launch/signals.h"
#include "ladder/trainer/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/scripted_trainer.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

using nlohmann::json;
using scripted::Linear;
using scripted::Samples;

constexpr std::int64_t kEvalSamples = 11;

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

// Notes the names of events, and their steps.
class Events : public TrainerCallback {
 public:
  explicit Events(json& names) : names_(names) {}
  void on_step_end(TrainerEvent& event) override { note("step", event); }
  void on_substep_end(TrainerEvent& event) override { note("substep", event); }
  void on_log(TrainerEvent& event) override { note("log", event); }
  void on_evaluate(TrainerEvent& event) override { note("evaluate", event); }
  void on_save(TrainerEvent& event) override { note("save", event); }
  void on_train_end(TrainerEvent& event) override { note("end", event); }

 private:
  void note(const char* name, const TrainerEvent& event) {
    names_.push_back({name, event.state.global_step});
  }
  json& names_;
};

template <typename Number>
std::vector<Number> values_of(const torch::Tensor& tensor) {
  const auto flat = tensor.to(torch::kCPU).contiguous().flatten();
  return {flat.data_ptr<Number>(), flat.data_ptr<Number>() + flat.numel()};
}

// All that a caller sees of a training, in a file a process.
void train(const TemporaryFolder& folder) {
  json seen;
  auto events = std::make_shared<Events>(seen["events"]);
  Trainer trainer({.model = std::make_shared<Linear>(),
                   .args = arguments(folder),
                   .train_dataset = std::make_shared<Samples>(37),
                   .eval_dataset = std::make_shared<Samples>(kEvalSamples),
                   .compute_metrics = accuracy,
                   .callbacks = {events},
                   .accelerator = {.cpu = true, .threads = 1, .quiet = true}});
  trainer.train();
  const auto output = trainer.predict();
  seen["losses"] = json::array();
  for (const auto& entry : trainer.state().log_history) {
    for (const char* name : {"loss", "grad_norm", "eval_loss", "eval_accuracy"}) {
      const double* const value = find_metric(entry.values, name);
      if (value != nullptr) seen["losses"].push_back(*value);
    }
  }
  seen["labels"] = values_of<std::int64_t>(output.label_ids.only());
  seen["predictions"] = values_of<float>(output.predictions);
  seen["weights"] = values_of<float>(trainer.model().parameters()[0]);
  seen["best"] = *trainer.state().best_metric;
  folder.write("rank" + std::to_string(trainer.accelerator().process_index()), seen.dump());
}

json seen_by(const TemporaryFolder& folder, int rank) {
  return json::parse(folder.read("rank" + std::to_string(rank)));
}

void expect_near(const json& got, const json& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto value = expected[i].get<double>();
    EXPECT_NEAR(got[i].get<double>(), value, 1e-5 * (1.0 + std::abs(value))) << i;
  }
}

TEST(TrainerOnTwo, BothSeeWhatOneAloneSees) {
  const TemporaryFolder two;
  function_launcher([&] { train(two); }, std::tuple<>(), {.num_processes = 2});
  const TemporaryFolder one;
  function_launcher([&] { train(one); }, std::tuple<>(), {.num_processes = 1});
  const auto got = seen_by(two, 0);
  const auto expected = seen_by(one, 0);
  EXPECT_EQ(got, seen_by(two, 1));
  EXPECT_EQ(got["events"], expected["events"]);
  EXPECT_EQ(got["labels"], json({0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1})) << "each once, in order";
  for (const char* name : {"losses", "predictions", "weights"}) {  // sums are made in other orders
    SCOPED_TRACE(name);
    expect_near(got[name], expected[name]);
  }
  EXPECT_EQ(list_checkpoints(two.file("out"), "checkpoint-").size(), 2U);
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

void train_module(const TemporaryFolder& folder, bool with_labels) {
  torch::manual_seed(1);
  LastState net;
  const auto all = scripted::Samples(37).get_batch(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6});
  const auto data = std::make_shared<TensorDataset>(
      all.inputs, with_labels ? all.targets.remainder(4) : torch::Tensor());
  TrainerOptions options = {.model = net,
                            .args = arguments(folder),
                            .train_dataset = data,
                            .eval_dataset = data,
                            .accelerator = {.cpu = true, .threads = 1, .quiet = true}};
  const auto run = [&](Trainer& trainer) {
    trainer.train();
    const auto metrics = trainer.evaluate();
    const json seen = {{"weights", values_of<float>(flat_weights(*net))},
                       {"eval_loss", *find_metric(metrics, "eval_loss")}};
    folder.write("rank" + std::to_string(trainer.accelerator().process_index()), seen.dump());
  };
  if (with_labels) {
    Trainer trainer(std::move(options));
    run(trainer);
  } else {
    ReconstructingTrainer trainer(std::move(options));
    run(trainer);
  }
}

TEST(TrainerOnTwo, TrainsAModuleOfLibTorchAlsoWithoutLabels) {
  for (const bool with_labels : {true, false}) {
    const TemporaryFolder two;
    function_launcher([&] { train_module(two, with_labels); }, std::tuple<>(),
                      {.num_processes = 2});
    const TemporaryFolder one;
    function_launcher([&] { train_module(one, with_labels); }, std::tuple<>(),
                      {.num_processes = 1});
    EXPECT_EQ(seen_by(two, 0), seen_by(two, 1));
    expect_near(seen_by(two, 0)["weights"], seen_by(one, 0)["weights"]);
    expect_near(json::array({seen_by(two, 0)["eval_loss"]}),
                json::array({seen_by(one, 0)["eval_loss"]}));
  }
}

// Asks the second of two processes to stop in the last step of the first epoch.
class Stopper : public TrainerCallback {
 public:
  void on_step_end(TrainerEvent& event) override {
    if (!event.state.is_world_process_zero && event.state.global_step == 3) std::raise(SIGTERM);
  }
};

// Notes what happens until it is stopped, then goes on from the checkpoint.
void train_and_stop(const TemporaryFolder& folder) {
  json seen;
  auto args = arguments(folder);
  args.load_best_model_at_end = false;
  args.save_strategy = SaveStrategy::kNo;
  args.save_only_model = true;  // which would leave nothing to go on from
  Trainer trainer(
      {.model = std::make_shared<Linear>(),
       .args = args,
       .train_dataset = std::make_shared<Samples>(37),
       .eval_dataset = std::make_shared<Samples>(kEvalSamples),
       .callbacks = {std::make_shared<Events>(seen["events"]), std::make_shared<Stopper>()},
       .accelerator = {.cpu = true, .threads = 1, .quiet = true}});
  try {
    trainer.train();
  } catch (const StoppedBySignal& told) {
    seen["told"] = told.signal();
  }
  const auto stopped = seen;
  trainer.train(folder.file("out/checkpoint-3"));
  folder.write("rank" + std::to_string(trainer.accelerator().process_index()),
               json({{"stopped", stopped}, {"end", trainer.state().global_step}}).dump());
}

TEST(TrainerOnTwo, ToldToStopInTheLastStepOfAnEpochTheyEndTheEpoch) {
  const TemporaryFolder folder;
  function_launcher([&] { train_and_stop(folder); }, std::tuple<>(), {.num_processes = 2});
  for (const int rank : {0, 1}) {
    const auto seen = seen_by(folder, rank);
    EXPECT_EQ(seen["stopped"]["told"], SIGTERM);
    const auto& events = seen["stopped"]["events"];
    const json last = {events[events.size() - 2], events.back()};
    EXPECT_EQ(last, json({{"evaluate", 3}, {"save", 3}})) << events;
    EXPECT_EQ(seen["end"], 6);
  }
}

// Trains with "auto", and notes the first step and the last.
void train_auto(const TemporaryFolder& folder, const std::string& name) {
  json events;
  Trainer trainer({.model = std::make_shared<Linear>(),
                   .args = arguments(folder),
                   .train_dataset = std::make_shared<Samples>(37),
                   .eval_dataset = std::make_shared<Samples>(kEvalSamples),
                   .callbacks = {std::make_shared<Events>(events)},
                   .accelerator = {.cpu = true, .threads = 1, .quiet = true}});
  trainer.train("auto");
  folder.write(name + std::to_string(trainer.accelerator().process_index()),
               json({events[0][1], trainer.state().global_step}).dump());
}

TEST(TrainerOnTwo, AutoResumesFromTheNewestIntactCheckpointOrStartsAnew) {
  const TemporaryFolder folder;
  const auto steps = [&](const std::string& name) {
    function_launcher([&] { train_auto(folder, name); }, std::tuple<>(), {.num_processes = 2});
    EXPECT_EQ(folder.read(name + "0"), folder.read(name + "1"));
    return json::parse(folder.read(name + "0"));
  };
  EXPECT_EQ(steps("first"), json({0, 6}));
  folder.write("out/checkpoint-6/model.safetensors", "damaged");
  EXPECT_EQ(steps("second"), json({3, 6}));
}

TEST(Trainer, AutoNeedsAFolder) {
  const TemporaryFolder folder;
  function_launcher(
      [&] {
        auto args = arguments(folder);
        args.output_dir = "";
        args.save_strategy = SaveStrategy::kNo;
        args.load_best_model_at_end = false;
        Trainer trainer({.model = std::make_shared<Linear>(),
                         .args = args,
                         .train_dataset = std::make_shared<Samples>(37),
                         .eval_dataset = std::make_shared<Samples>(kEvalSamples),
                         .accelerator = {.cpu = true, .threads = 1, .quiet = true}});
        EXPECT_ERROR(trainer.train("auto"), UsageError,
                     "resume_from_checkpoint: expected output_dir");
      },
      std::tuple<>(), {.num_processes = 1});
}

// Trains in two processes. Returns the error of the first, or "".
std::string end_of_training(const TemporaryFolder& folder, const TrainingArguments& args,
                            const std::string& resume = "") {
  const auto train = [&] {
    Trainer trainer({.model = std::make_shared<Linear>(),
                     .args = args,
                     .train_dataset = std::make_shared<Samples>(37),
                     .eval_dataset = std::make_shared<Samples>(kEvalSamples),
                     .accelerator = {.cpu = true, .threads = 1, .quiet = true}});
    std::string error;
    try {
      trainer.train(resume);
    } catch (const UsageError& refused) {
      error = refused.what();
    } catch (const DistributedError&) {  // of the other process
      return;
    }
    if (trainer.accelerator().is_main_process()) folder.write("error", error);
  };
  function_launcher(train, std::tuple<>(), {.num_processes = 2});
  return folder.read("error");
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
  const auto first = arguments(folder);
  EXPECT_EQ(end_of_training(folder, first), "");
  EXPECT_EQ(end_of_training(folder, first), "") << "the same again";
  auto more_logs = first;
  more_logs.logging_steps = 1;
  more_logs.eval_strategy = IntervalStrategy::kNo;
  more_logs.load_best_model_at_end = false;
  EXPECT_EQ(end_of_training(folder, more_logs), "") << "it ends with the same weights";
  const auto weights = folder.read("out/checkpoint-3/model.safetensors");
  auto second = first;
  second.learning_rate = 0.02;
  second.num_train_epochs = 1;
  const auto out = folder.file("out");
  EXPECT_EQ(
      end_of_training(folder, second),
      "output_dir " + out + ": " + out +
          "/checkpoint-3 is of another run: learning_rate is 0.01 there, and 0.02 here; hint: "
          "name another output_dir, go on with resume_from_checkpoint, or remove them with "
          "overwrite_output_dir");
  EXPECT_TRUE(end_of_training(folder, second, "auto").starts_with("output_dir "))
      << "none is named";
  EXPECT_EQ(folder.read("out/checkpoint-3/model.safetensors"), weights);
  EXPECT_EQ(numbers_in(folder), (Numbers{3, 6}));
  auto longer = second;
  longer.num_train_epochs = 3;
  EXPECT_EQ(end_of_training(folder, longer, out + "/checkpoint-6"), "") << "it goes on";
  EXPECT_EQ(numbers_in(folder), (Numbers{3, 6, 9}));
  auto without = second;
  without.save_strategy = SaveStrategy::kNo;
  without.load_best_model_at_end = false;
  EXPECT_EQ(end_of_training(folder, without), "") << "it saves none";
  EXPECT_EQ(numbers_in(folder), (Numbers{3, 6, 9}));
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
  const auto fail = [&] {
    FailingTrainer trainer({.model = std::make_shared<Linear>(),
                            .args = arguments(folder),
                            .train_dataset = std::make_shared<Samples>(37),
                            .eval_dataset = std::make_shared<Samples>(kEvalSamples),
                            .accelerator = {.cpu = true, .threads = 1, .quiet = true}});
    trainer.train();
  };
  EXPECT_ERROR(function_launcher(fail, std::tuple<>(), {.num_processes = 2}), ChildError, "rank 1");
  const auto checkpoints = list_checkpoints(folder.file("out"), "checkpoint-");
  ASSERT_EQ(checkpoints.size(), 1U);
  EXPECT_EQ(checkpoints[0].number, 3);
  open_checkpoint(folder.file("out/checkpoint-3"));
}

}  // namespace
}  // namespace ladder
