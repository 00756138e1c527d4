// SPDX-License-Identifier: Apache-2.0
//
// What a C++ program makes of a network of export_network.py, for exported_program_test.py:
//
//     exported_helper read NET                 reads it
//     exported_helper step NET IN OUT MODE WRAPPER
//         one forward and backward in MODE, train or eval, with the seed 0. OUT gets outputs,
//         gradients and buffers
//     exported_helper train NET IN OUT RANKS STEPS WRAPPER
//         steps of SGD; each rank has its rows of IN. OUT gets the weights
//     exported_helper time NET IN STEPS        milliseconds of each step: of NET, and of BasicNet
//     in
//                                              both kinds of arithmetic
//
// IN and OUT are safetensors files. The loss is the sum of the means of the squared outputs.
#include <fmt/core.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bridges/exported_program/exported_module.h"
#include "ladder/accelerate/accelerator.h"
#include "ladder/accelerate/function_launcher.h"
#include "ladder/amp/autocast.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/comm/init_process_group.h"
#include "ladder/core/clock.h"
#include "ladder/core/device.h"
#include "ladder/core/log.h"
#include "ladder/launch/exit_status.h"
#include "ladder/nn/random_scope.h"
#include "ladder/optim/sgd.h"
#include "ladder/parallel/convert_sync_batchnorm.h"
#include "ladder/parallel/data_parallel.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/fully_sharded_data_parallel.h"
#include "ladder/parallel/gradient_reducer.h"
#include "ladder/parallel/replica_check.h"
#include "ladder/parallel/zero_redundancy_optimizer.h"
#include "mnist/networks.h"

namespace ladder {
namespace {

using Network = std::shared_ptr<ExportedModule>;
using Wrapped = std::shared_ptr<Model>;

Inputs read_inputs(const std::string& path) {
  Inputs inputs;
  for (const auto& [name, tensor] : load_safetensors(path).tensors) inputs.set(name, tensor);
  return inputs;
}

torch::Tensor loss_of(const std::vector<torch::Tensor>& outputs) {
  torch::Tensor sum;
  for (const auto& output : outputs) {
    const auto loss = output.to(torch::kFloat32).square().mean();
    sum = sum.defined() ? sum + loss : loss;
  }
  return sum;
}

// A network in one process, by the name of its wrapper.
const std::map<std::string, std::function<Wrapped(const Network&)>> kWrappers = {
    {"none", [](const Network& net) { return net; }},
    {"copy", [](const Network& net) { return net->new_like(); }},
    {"autocast",
     [](const Network& net) { return std::make_shared<AutocastModel>(net, torch::kBFloat16); }},
    {"data_parallel",
     [](const Network& net) {
       return std::make_shared<DataParallel>(
           net, DataParallelOptions{.device_ids = {torch::kCPU, torch::kCPU}});
     }},
    {"ddp",
     [](const Network& net) {
       return std::make_shared<DistributedDataParallel>(net, ProcessGroup::single());
     }},
    {"accelerator",
     [](const Network& net) {
       static Accelerator accelerator({.cpu = true, .quiet = true});
       return accelerator.prepare_model(net);
     }},
};

void step(const std::vector<std::string>& arguments) {
  const auto net = std::make_shared<ExportedModule>(arguments.at(1));
  const auto inputs = read_inputs(arguments.at(2));
  const auto model = kWrappers.at(arguments.at(5))(net);
  model->train(arguments.at(4) == "train");
  torch::manual_seed(0);
  const auto outputs =
      arguments.at(5) == "none" ? net->outputs(inputs) : std::vector{model->forward(inputs)};
  loss_of(outputs).backward();
  SafetensorsFile file;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    file.tensors[fmt::format("output.{}", i)] = outputs[i].detach().contiguous();
  }
  const auto& own = model->unwrapped();
  for (const auto& item : own.named_parameters()) {
    if (item.value().grad().defined()) {
      file.tensors["grad." + item.key()] = item.value().grad().contiguous();
    }
  }
  for (const auto& item : own.named_buffers()) {
    file.tensors["buffer." + item.key()] = item.value().contiguous();
  }
  save_safetensors(arguments.at(3), file);
}

// One rank's part of a training, by the name of its wrapper.
void train(const std::vector<std::string>& arguments) {
  const auto group = init_process_group();
  prepare_process({.local_world_size = group.local_world_size()});
  const auto net = std::make_shared<ExportedModule>(arguments.at(1));
  const auto inputs = read_inputs(arguments.at(2))
                          .chunk(group.world_size())
                          .at(static_cast<std::size_t>(group.rank()));
  const auto& wrapper = arguments.at(6);
  Wrapped model = net;
  std::optional<GradientReducer> reducer;
  std::optional<ZeroRedundancyOptimizer> zero;
  if (wrapper == "reducer") reducer.emplace(*net, group);
  if (wrapper == "sync") convert_sync_batchnorm(*net, group);
  if (wrapper == "ddp" || wrapper == "zero" || wrapper == "sync") {
    model = std::make_shared<DistributedDataParallel>(net, group);
  }
  if (wrapper == "sharded") model = std::make_shared<FullyShardedDataParallel>(net, group);
  SGD optimizer(model->parameters(), {.lr = 1e-2});
  if (wrapper == "zero") zero.emplace(optimizer, group);
  torch::manual_seed(0);
  for (int i = 0; i < std::stoi(arguments.at(5)); ++i) {
    loss_of(reducer ? net->outputs(inputs) : std::vector{model->forward(inputs)}).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  if (wrapper == "sharded") dynamic_cast<FullyShardedDataParallel&>(*model).unshard();
  require_equal_parameters(*net, group);
  if (group.rank() == 0) save_model(*net, arguments.at(3));
}

void time_steps(const std::vector<std::string>& arguments) {
  prepare_process({.requested = 1});
  const auto inputs = read_inputs(arguments.at(2));
  std::vector<std::pair<std::string, Wrapped>> networks = {
      {"exported", std::make_shared<ExportedModule>(arguments.at(1))}};
  if (inputs.begin()->second.dim() == 4 && inputs.begin()->second.size(1) == 1) {  // BasicNet's
    for (const auto math : {mnist::Math::kReference, mnist::Math::kFast}) {
      networks.emplace_back(math == mnist::Math::kFast ? "fast" : "reference",
                            mnist::make_basic_net({.math = math}));
    }
  }
  for (int i = 0; i < std::stoi(arguments.at(3)); ++i) {
    for (const auto& [name, network] : networks) {
      const RandomScope random({0, 0, torch::arange(inputs.rows())});
      const auto start = steady_seconds();
      network->zero_grad();
      loss_of({network->forward(inputs)}).backward();
      print_line(fmt::format("{} {:.4f}", name, 1e3 * (steady_seconds() - start)));
    }
  }
}

void run(const std::vector<std::string>& arguments) {
  const auto& what = arguments.at(0);
  if (what == "read") ExportedModule(arguments.at(1));
  if (what == "step") step(arguments);
  if (what == "time") time_steps(arguments);
  if (what == "train") {
    function_launcher([&] { train(arguments); }, {}, {.num_processes = std::stoi(arguments.at(4))});
  }
}

}  // namespace
}  // namespace ladder

int main(int argc, char** argv) {
  return ladder::call_and_report([&] { ladder::run({argv + 1, argv + argc}); });
}
