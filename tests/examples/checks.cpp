// SPDX-License-Identifier: Apache-2.0
// The network of examples/pairs in the ways that have no program of their own, and the limits that
// examples/README.md states.
//
//     checks WHICH [--data DIR] [--nprocs N] [--pairs N] [--epochs N]
//
// A way prints its results. A limit ends with its error message and exit code.
#include <ladder/accelerate/accelerator.h>
#include <ladder/comm/init_process_group.h>
#include <ladder/core/device.h>
#include <ladder/core/log.h>
#include <ladder/data/data_loader.h>
#include <ladder/data/distributed_sampler.h>
#include <ladder/launch/exit_status.h>
#include <ladder/launch/spawn.h>
#include <ladder/monitor/evaluation.h>
#include <ladder/nn/dropout.h>
#include <ladder/optim/adam.h>
#include <ladder/parallel/data_parallel.h>
#include <ladder/parallel/distributed_data_parallel.h>
#include <ladder/trainer/trainer.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <type_traits>

#include "pairs.h"

namespace {

using pairs::PairNet;
using pairs::Pairs;
using pairs::Settings;

// Prints numbers that depend on each pixel of all pairs, and on their order.
void pairs_sum(const Settings& settings) {
  const auto data = train_pairs(settings);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(data->size()));
  std::iota(indices.begin(), indices.end(), 0);
  const auto batch = data->get_batch(indices);
  const auto sum = [](const torch::Tensor& rows) {
    const auto numbers = rows.mul(255).round().to(torch::kInt64).flatten();
    return (numbers * torch::arange(numbers.size(0))).sum().item<std::int64_t>();
  };
  ladder::print_line(fmt::format("pairs {} {} {}", sum(batch.inputs.at("left")),
                                 sum(batch.inputs.at("right")), sum(batch.targets)));
}

// --- Ways of training ---

std::shared_ptr<PairNet> new_network(const Settings& settings) {
  torch::manual_seed(settings.seed);
  return std::make_shared<PairNet>();
}

ladder::DataLoader train_loader(const Settings& settings, std::int64_t batch_size) {
  return ladder::DataLoader(train_pairs(settings),
                            {.batch_size = batch_size,
                             .shuffle = true,
                             .seed = settings.seed,
                             .transform = std::make_shared<pairs::SwapSides>(settings.seed)});
}

torch::Tensor loss_of(ladder::Model& model, const ladder::Batch& batch) {
  return batch.num_items().mean(pairs::loss_sum(model.forward(batch.inputs), batch.targets));
}

// Two replicas in one process, with one thread each.
void data_parallel(const Settings& settings) {
  ladder::prepare_process({.requested = 2});
  const auto network = new_network(settings);
  ladder::DataParallel model(network, {.device_ids = {torch::kCPU, torch::kCPU}});
  ladder::AdamW optimizer(model.parameters(), {.lr = pairs::kLearningRate, .weight_decay = 0});
  auto loader = train_loader(settings, pairs::kBatchSize);
  for (std::int64_t epoch = 0; epoch < settings.epochs; ++epoch) {
    loader.set_epoch(epoch);
    for (const ladder::Batch& batch : loader) {
      loss_of(model, batch).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  ladder::print_line(pairs::weights_line(*network));
}

// Each step in `windows` batches. Returns the network.
std::shared_ptr<PairNet> accelerated(ladder::Accelerator& accelerator, const Settings& settings,
                                     int windows) {
  accelerator.set_gradient_accumulation_steps(windows);
  const auto network = new_network(settings);
  auto [loader, model, optimizer] =
      accelerator.prepare(train_loader(settings, pairs::kBatchSize / windows), network,
                          std::make_unique<ladder::AdamW>(
                              network->parameters(),
                              ladder::AdamWOptions{.lr = pairs::kLearningRate, .weight_decay = 0}));
  for (std::int64_t epoch = 0; epoch < settings.epochs; ++epoch) {
    loader.set_epoch(epoch);
    for (const ladder::Batch& batch : loader) {
      const auto accumulation = accelerator.accumulate(*model);
      accelerator.backward(loss_of(*model, batch));
      optimizer->step();
      optimizer->zero_grad();
    }
  }
  accelerator.free_memory();
  return network;
}

// Prints the weights, and how far those of four accumulated batches per step are from them.
void accelerator(const Settings& settings) {
  ladder::Accelerator accelerator({.quiet = true});
  const auto whole = accelerated(accelerator, settings, 1);
  const auto parts = accelerated(accelerator, settings, 4);
  double difference = 0.0;
  for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
    const auto gap = (whole->parameters()[i] - parts->parameters()[i]).abs().max();
    difference = std::max(difference, gap.item<double>());
  }
  accelerator.print(pairs::weights_line(*whole));
  accelerator.print(fmt::format("accumulation {:.3g}", difference));
}

// A Trainer with two labels: compute_metrics gets both.
void two_labels(const Settings& settings) {
  ladder::TrainingArguments args;
  args.output_dir = "";
  args.save_strategy = ladder::SaveStrategy::kNo;
  args.per_device_eval_batch_size = 999;
  args.label_names = {"same", "brightness"};
  ladder::Trainer trainer(
      {.model = std::make_shared<PairNet>(),
       .args = args,
       .eval_dataset = test_pairs(settings),
       .data_collator = [](const ladder::Batch& batch) -> ladder::Inputs {
         return {{"left", batch.inputs.at("left")},
                 {"right", batch.inputs.at("right")},
                 {"same", batch.targets},
                 {"brightness", batch.inputs.at("left").mean(1)}};
       },
       .compute_loss_func =
           [](const torch::Tensor& scores, const torch::Tensor& same,
              const ladder::NumItems& items) { return items.mean(pairs::loss_sum(scores, same)); },
       .compute_metrics = [](const ladder::EvalPrediction& prediction) -> ladder::Metrics {
         return {{"brightness", prediction.label_ids.at("brightness").mean().item<double>()}};
       },
       .accelerator = {.quiet = true}});
  ladder::print_line(fmt::format("brightness {:.4f}", trainer.evaluate().at("eval_brightness")));
}

// --- Limits ---

// One output tensor.
static_assert(std::is_same_v<decltype(std::declval<ladder::Model&>().forward({})), torch::Tensor>);

// A data set has a size.
struct Stream : ladder::Dataset {
  ladder::Batch get_batch(std::span<const std::int64_t> indices) const override;
};
static_assert(std::is_abstract_v<Stream>);

// Inputs of `rows` pairs.
ladder::Inputs some_inputs(std::int64_t rows) {
  return {{"left", torch::rand({rows, 784})}, {"right", torch::rand({rows, 784})}};
}

// An output that has not one row per sample.
struct MeanNet : PairNet {
  using PairNet::PairNet;
  torch::Tensor forward(const ladder::Inputs& inputs) override {
    return PairNet::forward(inputs).mean();
  }
  std::shared_ptr<ladder::Model> new_like() const override {
    return ladder::new_network_like(*this, pairs::PairNetOptions{});
  }
};

void output_rows(const Settings& /*settings*/) {
  ladder::DataParallel model(std::make_shared<MeanNet>(),
                             {.device_ids = {torch::kCPU, torch::kCPU}});
  model.forward(some_inputs(4));
}

void gathered_rows(const Settings& settings) {
  ladder::Accelerator accelerator({.quiet = true});
  for (const ladder::Batch& batch :
       accelerator.prepare(ladder::DataLoader(test_pairs(settings), {.batch_size = 4}))) {
    accelerator.gather_for_metrics(batch.targets.mean());
  }
}

void predicted_rows(const Settings& settings) {
  ladder::TrainingArguments args;
  args.output_dir = "";
  args.save_strategy = ladder::SaveStrategy::kNo;
  ladder::Trainer trainer({.model = std::make_shared<MeanNet>(),
                           .args = args,
                           .data_collator = [](const auto& batch) { return batch.inputs; },
                           .accelerator = {.quiet = true}});
  trainer.predict(test_pairs(settings));
}

void scattered_rows(const Settings& settings) {
  ladder::DataParallel model(new_network(settings), {.device_ids = {torch::kCPU, torch::kCPU}});
  model.forward({{"left", torch::rand({4, 784})}, {"right", torch::rand({3, 784})}});
}

// Pairs of which the last one has no right image.
struct Incomplete : ladder::Dataset {
  std::int64_t size() const override { return 4; }
  ladder::Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto rows = static_cast<std::int64_t>(indices.size());
    return {
        .inputs = {{"left", torch::zeros({rows, 784})}, {"right", torch::zeros({rows - 1, 784})}}};
  }
};

void input_rows(const Settings& /*settings*/) {
  const ladder::DataLoader loader(std::make_shared<Incomplete>(), {.batch_size = 4});
  for (const ladder::Batch& batch : loader) static_cast<void>(batch);
}

void several_devices(const Settings& settings) {
  const auto network = new_network(settings);
  network->register_parameter("far", torch::empty({2}, torch::kMeta));
  ladder::DistributedDataParallel model(network, ladder::init_process_group());
}

void backend(const Settings& /*settings*/) {
  const auto group = ladder::init_process_group();
  if (group.rank() == 0) ladder::print_line(group.backend());
}

void unused_parameter(const Settings& settings) {
  const auto network = new_network(settings);
  network->register_module("spare", torch::nn::Linear(2, 2));
  ladder::DistributedDataParallel model(network, ladder::init_process_group());
  model.forward(some_inputs(4)).sum().backward();
}

void class_scores(const Settings& settings) {
  ladder::evaluate(*new_network(settings), ladder::DataLoader(test_pairs(settings)),
                   pairs::loss_sum, torch::kCPU);
}

void dropout_scope(const Settings& /*settings*/) {
  ladder::Dropout dropout({.p = 0.5});
  dropout.forward(torch::ones({4, 8}));
}

void second_backward(const Settings& settings) {
  ladder::DataParallel model(new_network(settings), {.device_ids = {torch::kCPU, torch::kCPU}});
  const auto loss = model.forward(some_inputs(4)).sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
}

void transform_in_evaluation(const Settings& settings) {
  const auto data = test_pairs(settings);
  ladder::DataLoader(data, {.sampler = std::make_shared<ladder::ExactEvalSampler>(data->size()),
                            .transform = std::make_shared<pairs::SwapSides>(settings.seed)});
}

void spawn_after_tensor(const Settings& /*settings*/) {
  ladder::prepare_process({.requested = 2});
  torch::rand({1000, 1000}).matmul(torch::rand({1000, 1000}));
  ladder::spawn([](int /*rank*/) {});
}

// Batches whose rows differ in length, as texts do that are padded batch by batch.
struct Texts : ladder::Dataset {
  std::int64_t size() const override { return 8; }
  ladder::Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto rows = static_cast<std::int64_t>(indices.size());
    return {.inputs = torch::zeros({rows, 1 + indices[0]}), .targets = torch::zeros({rows})};
  }
};

void dispatched_lengths(const Settings& /*settings*/) {
  ladder::Accelerator accelerator(
      {.cpu = true, .data_loader = {.dispatch_batches = true}, .quiet = true});
  for (const ladder::Batch& batch :
       accelerator.prepare(ladder::DataLoader(std::make_shared<Texts>(), {.batch_size = 4}))) {
    static_cast<void>(batch);
  }
}

void sparse_gradient(const Settings& /*settings*/) {
  struct Net : ladder::Model {
    torch::Tensor forward(const ladder::Inputs& inputs) override {
      return words->forward(inputs.only());
    }
    std::shared_ptr<ladder::Model> new_like() const override { return nullptr; }
    torch::nn::Embedding words = register_module(
        "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)));
  };
  ladder::DistributedDataParallel model(std::make_shared<Net>(), ladder::init_process_group());
  model.forward(torch::tensor({1, 2, 3})).sum().backward();
}

const std::map<std::string, std::function<void(const Settings&)>> kChecks = {
    {"pairs_sum", pairs_sum},
    {"data_parallel", data_parallel},
    {"accelerator", accelerator},
    {"two_labels", two_labels},
    {"backend", backend},
    {"output_rows", output_rows},
    {"gathered_rows", gathered_rows},
    {"predicted_rows", predicted_rows},
    {"scattered_rows", scattered_rows},
    {"input_rows", input_rows},
    {"several_devices", several_devices},
    {"unused_parameter", unused_parameter},
    {"class_scores", class_scores},
    {"dropout_scope", dropout_scope},
    {"second_backward", second_backward},
    {"transform_in_evaluation", transform_in_evaluation},
    {"spawn_after_tensor", spawn_after_tensor},
    {"dispatched_lengths", dispatched_lengths},
    {"sparse_gradient", sparse_gradient}};

}  // namespace

int main(int argc, char** argv) {
  return ladder::call_and_report([&] {
    const auto settings = pairs::settings_from(argc - 1, argv + 1);
    const auto& check = kChecks.at(argv[1]);
    if (settings.nprocs == 1) return check(settings);
    ladder::spawn([&](int /*rank*/) { check(settings); }, {.nprocs = settings.nprocs});
  });
}
