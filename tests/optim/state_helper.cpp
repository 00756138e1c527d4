// SPDX-License-Identifier: Apache-2.0
//
// Takes part in the comparison of saved states with Python, through the files of a FOLDER:
//
//     state_helper train FOLDER WAY FIRST LAST
//         Steps FIRST to LAST of a run with the gradients of gradients.safetensors, from
//         weights.safetensors and, if FIRST > 0, optimizer.safetensors and scheduler.json; leaves
//         all three as they are then.
//     state_helper draw FOLDER
//         Draws random numbers into drawn.safetensors, from the state in random.safetensors, and
//         leaves the state behind them there.
//     state_helper archive FOLDER
//         Writes a network and an optimizer as archives of torch::save, model.pt and adam.pt, and
//         as safetensors.
//
// A refusal is its message on standard error, and the exit code of its error.
#include <fmt/core.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ladder/checkpoint/optimizer_archive.h"
#include "ladder/checkpoint/random_state.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "ladder/nn/model.h"
#include "ladder/optim/adagrad.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/fused_optimizer.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/optim/rmsprop.h"
#include "ladder/optim/schedules.h"
#include "ladder/optim/sgd.h"
#include "mnist/networks.h"

namespace ladder {
namespace {

using Arguments = std::vector<std::string>;
using OptimizerPointer = std::unique_ptr<FusedOptimizer>;
using SchedulerPointer = std::unique_ptr<LrScheduler>;

constexpr int kSteps = 10;

struct Way {
  std::function<OptimizerPointer(const Model&)> optimizer;
  std::function<SchedulerPointer(FusedOptimizer&)> scheduler;
};

OptimizerPointer sgd(const Model& model, const SgdOptions& options) {
  return std::make_unique<SGD>(model.parameters(), options);
}

// Weights and biases in groups of their own, the biases at half the rate and without weight decay.
template <typename Optimizer, typename Options>
OptimizerPointer two_groups(const Model& model, Options options) {
  std::vector<torch::Tensor> weights;
  std::vector<torch::Tensor> biases;
  for (const auto& item : model.named_parameters()) {
    (item.key().ends_with("bias") ? biases : weights).push_back(item.value());
  }
  OptimizerPointer optimizer = std::make_unique<Optimizer>(weights, options);
  options.lr /= 2.0;
  options.weight_decay = 0.0;
  optimizer->add_param_group(parameter_group(biases, options));
  return optimizer;
}

OptimizerPointer rmsprop(const Model& model, const RMSpropOptions& options) {
  return std::make_unique<RMSprop>(model.parameters(), options);
}

SchedulerPointer step_lr(FusedOptimizer& optimizer) {
  return std::make_unique<StepLR>(optimizer, StepLrOptions{.step_size = 3, .gamma = 0.3});
}

SchedulerPointer linear(FusedOptimizer& optimizer) {
  return linear_schedule_with_warmup(optimizer, {2, kSteps});
}

// The same as WAYS in tests/interop/optimizer_test.py.
Way way_of(const std::string& name) {
  const std::map<std::string, Way> ways = {
      {"adamw",
       {[](const Model& model) {
          return std::make_unique<AdamW>(
              model.parameters(),
              AdamWOptions{
                  .lr = 0.01, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.05});
        },
        linear}},
      {"adamw_groups",
       {[](const Model& model) { return two_groups<AdamW>(model, AdamWOptions{.lr = 0.02}); },
        step_lr}},
      {"adam",
       {[](const Model& model) {
          return two_groups<Adam>(model, AdamOptions{.lr = 0.02, .weight_decay = 0.1});
        },
        linear}},
      {"adagrad",
       {[](const Model& model) {
          return two_groups<Adagrad>(model, AdagradOptions{.lr = 0.1,
                                                           .lr_decay = 0.1,
                                                           .weight_decay = 0.1,
                                                           .initial_accumulator_value = 0.5});
        },
        step_lr}},
      {"rmsprop", {[](const Model& model) { return rmsprop(model, {.lr = 0.01}); }, step_lr}},
      {"rmsprop_all",
       {[](const Model& model) {
          return rmsprop(model,
                         {.lr = 0.01, .weight_decay = 0.1, .momentum = 0.9, .centered = true});
        },
        linear}},
      {"sgd", {[](const Model& model) { return sgd(model, {.lr = 0.1}); }, step_lr}},
      {"momentum",
       {[](const Model& model) {
          return sgd(model, {.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01});
        },
        step_lr}},
      {"nesterov",
       {[](const Model& model) {
          return sgd(model, {.lr = 0.1, .momentum = 0.9, .nesterov = true});
        },
        linear}}};
  return ways.at(name);
}

// A run of ConvNet, whose weights lie in channels_last, where Python's lie row by row.
class Run {
 public:
  Run(std::string folder, const std::string& way)
      : folder_(std::move(folder)),
        optimizer_(way_of(way).optimizer(*model_)),
        scheduler_(way_of(way).scheduler(*optimizer_)) {}

  void load(bool started) {
    load_model(*model_, path("weights.safetensors"));
    if (!started) return;
    const auto file = path("optimizer.safetensors");
    optimizer_->load_state_dict(*model_, optimizer_state_from(load_safetensors(file), file), file);
    const auto schedule = path("scheduler.json");
    std::ifstream text(schedule);
    scheduler_->load_state_dict(nlohmann::json::parse(text), schedule);
  }

  void go(int first, int last) {
    const auto gradients = load_safetensors(path("gradients.safetensors")).tensors;
    for (int step = first; step < last; ++step) {
      for (const auto& item : model_->named_parameters()) {
        const auto& gradient = gradients.at(fmt::format("{}.{}", step, item.key()));
        item.value().mutable_grad() = torch::empty_like(item.value().detach()).copy_(gradient);
      }
      optimizer_->step();
      scheduler_->step();
    }
  }

  void save() const {
    save_model(*model_, path("weights.safetensors"));
    save_safetensors(path("optimizer.safetensors"),
                     to_safetensors(optimizer_->state_dict(*model_)));
    std::ofstream(path("scheduler.json")) << scheduler_->state_dict().dump();
  }

 private:
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
  std::shared_ptr<Model> model_ = mnist::make_conv_net();
  OptimizerPointer optimizer_;
  SchedulerPointer scheduler_;
};

void train(const Arguments& arguments) {
  const int first = std::stoi(arguments.at(3));
  Run run(arguments.at(1), arguments.at(2));
  run.load(first > 0);
  run.go(first, std::stoi(arguments.at(4)));
  run.save();
}

void draw(const Arguments& arguments) {
  const torch::Device here(torch::kCPU);
  const std::string path = arguments.at(1) + "/random.safetensors";
  plan_load_random_state(load_safetensors(path).tensors, here, path)();
  StateDict drawn;
  drawn["0"] = torch::randn({1});
  drawn["1"] = torch::rand({100});
  drawn["2"] = torch::randperm(50);
  drawn["3"] = torch::randn({64});
  drawn["4"] = torch::randn({1});
  save_safetensors(arguments.at(1) + "/drawn.safetensors", {drawn, {}});
  save_safetensors(path, {random_state(here), {}});
}

void archive(const Arguments& arguments) {
  const auto path = arguments.at(1) + "/";
  const auto model = mnist::make_conv_net();
  torch::optim::Adam adam(model->parameters());
  for (auto& parameter : model->parameters()) {
    parameter.mutable_grad() = torch::randn_like(parameter);
  }
  adam.step();
  torch::save(model, path + "model.pt");
  torch::save(adam, path + "adam.pt");
  save_model(*model, path + "model.safetensors");
  save_safetensors(path + "adam.safetensors", archive_of(adam));
}

int run(const Arguments& arguments) {
  const std::map<std::string, void (*)(const Arguments&)> modes = {
      {"archive", archive}, {"draw", draw}, {"train", train}};
  try {
    modes.at(arguments.at(0))(arguments);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}

}  // namespace
}  // namespace ladder

int main(int argc, char** argv) { return ladder::run({argv + 1, argv + argc}); }
