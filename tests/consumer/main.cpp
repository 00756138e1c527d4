// SPDX-License-Identifier: Apache-2.0
// A network with two inputs, trained in four ways with the installed library alone: DataParallel,
// DistributedDataParallel, Accelerator, Trainer. All end with the same weights.
#include <ladder/accelerate/accelerator.h>
#include <ladder/checkpoint/state_dict.h>
#include <ladder/comm/init_process_group.h>
#include <ladder/core/device.h>
#include <ladder/core/exit_status.h>
#include <ladder/data/data_loader.h>
#include <ladder/data/distributed_sampler.h>
#include <ladder/launch/spawn.h>
#include <ladder/nn/model.h>
#include <ladder/optim/sgd.h>
#include <ladder/parallel/data_parallel.h>
#include <ladder/parallel/distributed_data_parallel.h>
#include <ladder/trainer/trainer.h>
#include <torch/nn/modules/linear.h>

#include <iostream>
#include <memory>
#include <span>
#include <vector>

namespace {

constexpr std::int64_t kSamples = 101;  // the last batch is short
constexpr std::int64_t kBatch = 16;     // of both processes together
constexpr double kRate = 0.05;

struct MatcherOptions {
  std::int64_t width = 16;
};

// Decides whether an image fits a text: each becomes a vector, and the score is their product.
class Matcher : public ladder::Model {
 public:
  explicit Matcher(MatcherOptions options = {})
      : options_(options),
        image_(register_module("image", torch::nn::Linear(8, options.width))),
        text_(register_module("text", torch::nn::Linear(4, options.width))) {}

  torch::Tensor forward(const ladder::Inputs& inputs) override {
    return (image_->forward(inputs.at("image")) * text_->forward(inputs.at("text"))).sum(1);
  }

  std::shared_ptr<Model> new_like() const override {
    return ladder::new_network_like(*this, options_);
  }

 private:
  MatcherOptions options_;
  torch::nn::Linear image_;
  torch::nn::Linear text_;
};

// Random pairs, and whether their first numbers agree in sign.
class Pairs : public ladder::Dataset {
 public:
  Pairs() {
    torch::manual_seed(1);
    images_ = torch::randn({kSamples, 8});
    texts_ = torch::randn({kSamples, 4});
    fits_ = (images_.select(1, 0) * texts_.select(1, 0)).sign();
  }

  std::int64_t size() const override { return kSamples; }

  ladder::Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto rows = torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()));
    return {.inputs = {{"image", images_.index_select(0, rows)},
                       {"text", texts_.index_select(0, rows)}},
            .targets = fits_.index_select(0, rows)};
  }

 private:
  torch::Tensor images_;
  torch::Tensor texts_;
  torch::Tensor fits_;
};

torch::Tensor squares(const torch::Tensor& scores, const torch::Tensor& fits) {
  return (scores - fits).square().sum();
}

torch::Tensor loss_of(const torch::Tensor& scores, const torch::Tensor& fits,
                      const ladder::NumItems& items) {
  return items.mean(squares(scores, fits));
}

std::shared_ptr<Matcher> new_matcher() {
  torch::manual_seed(42);
  return std::make_shared<Matcher>();
}

void report(const char* way, const ladder::Model& model, int rank) {
  if (rank != 0) return;
  std::cout << way << ' ' << ladder::weights_sha256(ladder::state_dict(model)) << std::endl;
}

void data_parallel(int /*rank*/) {
  const auto network = new_matcher();
  ladder::DataParallel model(network, {.device_ids = {torch::kCPU, torch::kCPU}});
  ladder::SGD optimizer(model.parameters(), {.lr = kRate});
  const ladder::DataLoader loader(std::make_shared<Pairs>(),
                                  {.batch_size = kBatch, .shuffle = true});
  for (const ladder::Batch& batch : loader) {
    loss_of(model.forward(batch.inputs), batch.targets, batch.num_items()).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  report("DataParallel", *network, 0);
}

void distributed_data_parallel(int rank) {
  const auto group = ladder::init_process_group({.device = "cpu"});
  const auto network = new_matcher();
  ladder::DistributedDataParallel model(network, group);
  ladder::SGD optimizer(model.parameters(), {.lr = kRate});
  const auto slices = ladder::divide_batches(
      kSamples, {.batch_size = kBatch, .rank = rank, .world_size = group.world_size()});
  const ladder::DataLoader loader(std::make_shared<Pairs>(), {.batch_sampler = slices});
  for (const ladder::Batch& batch : loader) {
    loss_of(model.forward(batch.inputs), batch.targets, batch.num_items()).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  report("DistributedDataParallel", *network, rank);
}

void accelerator(int rank) {
  ladder::Accelerator accelerator({.cpu = true, .threads = 1, .quiet = true});
  const auto network = new_matcher();
  auto [loader, model, optimizer] = accelerator.prepare(
      ladder::DataLoader(std::make_shared<Pairs>(), {.batch_size = kBatch, .shuffle = true}),
      network,
      std::make_unique<ladder::SGD>(network->parameters(), ladder::SgdOptions{.lr = kRate}));
  for (const ladder::Batch& batch : loader) {
    accelerator.backward(loss_of(model->forward(batch.inputs), batch.targets, batch.num_items()));
    optimizer->step();
    optimizer->zero_grad();
  }
  report("Accelerator", *network, rank);
}

void trainer(int rank) {
  ladder::TrainingArguments args;
  args.output_dir = "";
  args.num_train_epochs = 1;
  args.per_device_train_batch_size = kBatch;
  args.accelerator_config = {.split_batches = true, .even_batches = false};  // divide each batch
  args.lr_scheduler_type = ladder::SchedulerType::kConstant;
  args.max_grad_norm = 0.0;
  args.logging_strategy = ladder::IntervalStrategy::kNo;
  args.save_strategy = ladder::SaveStrategy::kNo;
  args.use_cpu = true;
  ladder::Trainer trainer({.model_init = [] { return new_matcher(); },
                           .args = args,
                           .train_dataset = std::make_shared<Pairs>(),
                           .compute_loss_func = loss_of,
                           .optimizer_init =
                               [](const ladder::Model& model) {
                                 return std::make_unique<ladder::SGD>(
                                     model.parameters(), ladder::SgdOptions{.lr = kRate});
                               },
                           .accelerator = {.threads = 1, .quiet = true}});
  trainer.train();
  report("Trainer", trainer.model(), rank);
}

}  // namespace

int main() {
  return ladder::call_and_report([] {
    ladder::spawn(data_parallel, {.nprocs = 1});
    ladder::spawn(distributed_data_parallel, {.nprocs = 2});
    ladder::spawn(accelerator, {.nprocs = 2});
    ladder::spawn(trainer, {.nprocs = 2});
  });
}
