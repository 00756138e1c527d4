// SPDX-License-Identifier: Apache-2.0
// Trains the transformer block of networks.py, as Python has defined it, on two ranks:
//
//     build-examples/exported lookup.pt2 weights.safetensors
#include <bridges/exported_program/exported_module.h>
#include <fmt/core.h>
#include <ladder/accelerate/function_launcher.h>
#include <ladder/checkpoint/safetensors.h>
#include <ladder/comm/init_process_group.h>
#include <ladder/core/device.h>
#include <ladder/core/log.h>
#include <ladder/data/data_loader.h>
#include <ladder/data/distributed_sampler.h>
#include <ladder/launch/exit_status.h>
#include <ladder/optim/adam.h>
#include <ladder/parallel/distributed_data_parallel.h>
#include <ladder/parallel/replica_check.h>

namespace {

constexpr std::int64_t kLength = 12, kWords = 32, kBatch = 128, kEpochs = 2;

// Texts of random words. The first word of each is a place; the word there is the target.
std::shared_ptr<ladder::TensorDataset> texts(std::int64_t count) {
  const auto words = torch::randint(kWords, {count, kLength}, torch::kInt64);
  words.select(1, 0).random_(1, kLength);
  const auto answers = words.gather(1, words.narrow(1, 0, 1)).flatten();
  return std::make_shared<ladder::TensorDataset>(words, answers);
}

torch::Tensor loss_sum(const torch::Tensor& scores, const torch::Tensor& answers) {
  return torch::cross_entropy_loss(scores, answers, /*weight=*/{}, at::Reduction::Sum);
}

void train(const std::string& network_path, const std::string& weights_path) {
  const auto group = ladder::init_process_group();
  ladder::prepare_process({.local_world_size = group.local_world_size()});
  const ladder::Log log({.rank = group.rank(), .world_size = group.world_size()});
  const auto device = ladder::choose_device("auto", log, group.local_rank());

  torch::manual_seed(42);  // the same data on all ranks, which divide each batch
  const auto data = texts(20'000);
  ladder::DataLoader loader(
      data, {.batch_sampler = ladder::divide_batches(
                 data->size(),
                 {.batch_size = kBatch, .rank = group.rank(), .world_size = group.world_size()})});

  const auto network = std::make_shared<ladder::ExportedModule>(network_path);
  network->to(device);
  ladder::DistributedDataParallel model(network, group);
  ladder::AdamW optimizer(model.parameters(), {.lr = 2e-3});
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    loader.set_epoch(epoch);
    double last = 0;
    for (const ladder::Batch& part : loader) {
      const auto batch = part.to(device);
      const auto loss =
          batch.num_items().mean(loss_sum(model.forward(batch.inputs), batch.targets));
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      last = loss.item<double>();
    }
    if (group.rank() == 0) ladder::print_line(fmt::format("epoch {} loss {:.4f}", epoch + 1, last));
  }
  ladder::require_equal_replicas(model, group);
  if (group.rank() == 0) ladder::save_model(*network, weights_path);
}

}  // namespace

int main(int argc, char** argv) {
  return ladder::call_and_report([&] {
    const std::string network = argc > 1 ? argv[1] : "lookup.pt2";
    const std::string weights = argc > 2 ? argv[2] : "weights.safetensors";
    ladder::function_launcher([&] { train(network, weights); }, {}, {.num_processes = 2});
  });
}
