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
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ladder/checkpoint/random_state.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "ladder/guest/optimizer_archive.h"
#include "mnist/networks.h"
#include "tests/optim/ways.h"

namespace ladder {
namespace {

using Arguments = std::vector<std::string>;

// A run of ConvNet, whose weights lie in channels_last, where Python's lie row by row.
class Run {
 public:
  Run(std::string folder, const std::string& way)
      : folder_(std::move(folder)),
        optimizer_(ways().at(way).optimizer(*model_)),
        scheduler_(ways().at(way).scheduler(*optimizer_)) {}

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
  // In this order, which braces keep.
  const StateDict drawn{{"0", torch::randn({1})},
                        {"1", torch::rand({100})},
                        {"2", torch::randperm(50)},
                        {"3", torch::randn({64})},
                        {"4", torch::randn({1})}};
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
