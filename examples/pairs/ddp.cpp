// SPDX-License-Identifier: Apache-2.0
// Trains a network with two inputs by DistributedDataParallel, in processes that it starts itself:
//
//     build-examples/ddp --data data/mnist --nprocs 2
#include <ladder/comm/init_process_group.h>
#include <ladder/core/device.h>
#include <ladder/core/log.h>
#include <ladder/data/data_loader.h>
#include <ladder/data/distributed_sampler.h>
#include <ladder/launch/exit_status.h>
#include <ladder/launch/spawn.h>
#include <ladder/optim/adam.h>
#include <ladder/parallel/distributed_data_parallel.h>
#include <ladder/parallel/replica_check.h>

#include "pairs.h"

namespace {

// Loss and accuracy over the samples of all ranks. A collective.
std::string evaluate(ladder::Model& model, const ladder::DataLoader& loader, std::int64_t epoch,
                     const ladder::ProcessGroup& group, const torch::Device& device) {
  const torch::NoGradGuard no_grad;
  model.eval();
  auto sums = torch::zeros({3}, torch::TensorOptions(device).dtype(torch::kFloat64));
  for (const ladder::Batch& part : loader) {
    const auto batch = part.to(device);
    const auto scores = model.forward(batch.inputs);
    sums[0] += pairs::loss_sum(scores, batch.targets);
    sums[1] += pairs::correct(scores, batch.targets).sum();
    sums[2] += batch.size();
  }
  model.train();
  group.all_reduce(sums);
  const auto means = sums / sums[2];
  return pairs::epoch_line(epoch, means[0].item<double>(), means[1].item<double>());
}

// Trains on one rank. The ranks divide each batch, so any number of them takes the same steps.
void train(const pairs::Settings& settings) {
  const auto group = ladder::init_process_group();
  const int rank = group.rank();
  const int world_size = group.world_size();
  ladder::prepare_process({.local_world_size = group.local_world_size()});
  const ladder::Log log({.rank = rank, .world_size = world_size});
  const auto device = ladder::choose_device("auto", log, group.local_rank());

  const auto train_data = pairs::train_pairs(settings);
  const auto parts = ladder::divide_batches(train_data->size(), {.batch_size = pairs::kBatchSize,
                                                                 .seed = settings.seed,
                                                                 .rank = rank,
                                                                 .world_size = world_size});
  ladder::DataLoader train_loader(
      train_data,
      {.batch_sampler = parts, .transform = std::make_shared<pairs::SwapSides>(settings.seed)});
  const auto test_data = pairs::test_pairs(settings);
  const auto test_part = std::make_shared<ladder::ExactEvalSampler>(
      test_data->size(), ladder::ExactEvalSamplerOptions{.world_size = world_size, .rank = rank});
  const ladder::DataLoader test_loader(test_data, {.batch_size = 500, .sampler = test_part});

  torch::manual_seed(settings.seed);
  const auto network = std::make_shared<pairs::PairNet>();
  network->to(device);
  ladder::DistributedDataParallel model(network, group);
  ladder::AdamW optimizer(model.parameters(), {.lr = pairs::kLearningRate, .weight_decay = 0});
  for (std::int64_t epoch = 0; epoch < settings.epochs; ++epoch) {
    train_loader.set_epoch(epoch);
    for (const ladder::Batch& part : train_loader) {
      const auto batch = part.to(device);
      const auto scores = model.forward(batch.inputs);
      batch.num_items().mean(pairs::loss_sum(scores, batch.targets)).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto line = evaluate(model, test_loader, epoch + 1, group, device);
    if (rank == 0) ladder::print_line(line);
  }
  ladder::require_equal_replicas(model, group);
  if (rank == 0) ladder::print_line(pairs::weights_line(*network));
}

}  // namespace

int main(int argc, char** argv) {
  return ladder::call_and_report([&] {
    const auto settings = pairs::settings_from(argc, argv);
    ladder::spawn([&](int /*rank*/) { train(settings); }, {.nprocs = settings.nprocs});
  });
}
