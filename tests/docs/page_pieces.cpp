// SPDX-License-Identifier: Apache-2.0
// The short pieces of code on docs/library.md, docs/same-weights.md and the pages of stages 4 to 6,
// which show what is here between `#region NAME` and `#endregion NAME`. Each runs in two processes.
#include <ladder/accelerate/accelerator.h>
#include <ladder/amp/autocast.h>
#include <ladder/amp/grad_scaler.h>
#include <ladder/checkpoint/safetensors.h>
#include <ladder/comm/init_process_group.h>
#include <ladder/comm/run_together.h>
#include <ladder/core/device.h>
#include <ladder/core/log.h>
#include <ladder/data/data_loader.h>
#include <ladder/data/distributed_sampler.h>
#include <ladder/exact/exact_data_parallel.h>
#include <ladder/graph/step_graph.h>
#include <ladder/launch/exit_status.h>
#include <ladder/launch/spawn.h>
#include <ladder/nn/random_scope.h>
#include <ladder/nn/state_dict.h>
#include <ladder/observe/fingerprint.h>
#include <ladder/optim/sgd.h>
#include <ladder/parallel/comm_hook.h>
#include <ladder/parallel/distributed_data_parallel.h>
#include <ladder/trainer/trainer.h>
#include <mnist/accelerated_options.h>
#include <mnist/dataset.h>
#include <mnist/recipe.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace {

using namespace ladder;
using mnist::Recipe;
using mnist::Split;

class MyNet : public Model {
 public:
  // #region autocast-inside
  torch::Tensor forward(const Inputs& inputs) override {
    const ladder::Autocast autocast(inputs.device(), torch::kBFloat16);
    const auto x = torch::relu(body->forward(torch::flatten(inputs.only(), 1)));
    return ladder::at_least_float32(head->forward(x));
  }
  // #endregion autocast-inside

  std::shared_ptr<Model> new_like() const override {
    const RngStateGuard keep;
    auto copy = std::make_shared<MyNet>();
    copy_values(*this, *copy);
    return copy;
  }

 private:
  torch::nn::Linear body = register_module("body", torch::nn::Linear(784, 8));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(8, 10));
};

// A module with two inputs that is no Model: GradientReducer serves it.
struct Matcher : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& images, const torch::Tensor& texts) {
    return (image->forward(images) * text->forward(texts)).sum(1);
  }

  torch::nn::Linear image = register_module("image", torch::nn::Linear(8, 16));
  torch::nn::Linear text = register_module("text", torch::nn::Linear(4, 16));
};

struct Pairs {
  torch::Tensor images;
  torch::Tensor texts;
  torch::Tensor fit;
};

torch::Tensor loss_of(const torch::Tensor& score, const Pairs& pairs, int world_size) {
  return (score - pairs.fit).square().sum() * world_size / (pairs.fit.size(0) * world_size);
}

torch::Tensor loss_of(const torch::Tensor& scores, const torch::Tensor& labels) {
  return torch::cross_entropy_loss(scores, labels);
}

torch::Tensor loss_sum(const torch::Tensor& scores, const torch::Tensor& labels) {
  return torch::cross_entropy_loss(scores, labels, {}, at::Reduction::Sum);
}

std::shared_ptr<const mnist::Dataset> images_of(Split split) {
  return std::make_shared<mnist::Dataset>(LADDER_SOURCE_DIR "/data/mnist", split,
                                          mnist::DatasetOptions{.limit = 128});
}

Batch first_batch() { return *DataLoader(images_of(Split::kTrain), {.batch_size = 32}).begin(); }

// docs/library.md

void process_group() {
  const std::int64_t correct = 31;
  const std::int64_t seen = 32;
  // #region process-group
  const ladder::ProcessGroup group =
      ladder::init_process_group({.timeout = std::chrono::seconds(30)});
  auto counts = torch::tensor({correct, seen});
  group.all_reduce(counts);  // the sum over all ranks, on every rank
  // #endregion process-group
  if (group.rank() == 0) std::cout << "seen " << counts[1].item<std::int64_t>() << std::endl;
}

void any_module() {
  const auto x = torch::randn({5, 2, 8});
  // #region any-module
  const ladder::ProcessGroup group = ladder::init_process_group();
  torch::nn::LSTM net(8, 4);
  const ladder::GradientReducer reducer(*net, group);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto states = std::get<0>(net->forward(x));
  states.square().mean().backward();  // gradients are averaged now
  optimizer.step();
  // #endregion any-module
}

void own_loop() {
  const TemporaryFolder folder;
  const std::string path = folder.file("net.safetensors");
  const std::string runs = folder.file("two");
  const auto data = images_of(Split::kTrain);
  // #region before-the-model
  const auto group = ladder::init_process_group();
  ladder::prepare_process({.local_world_size = group.local_world_size()});
  const ladder::Log log({.rank = group.rank(), .world_size = group.world_size()});
  const auto device = ladder::choose_device("auto", log, group.local_rank());
  // #endregion before-the-model
  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(784, 10));
  net->to(device);
  const ladder::GradientReducer reducer(*net, group);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  // #region divided-data
  const auto parts = ladder::divide_batches(
      data->size(), {.batch_size = 64, .rank = group.rank(), .world_size = group.world_size()});
  ladder::DataLoader loader(data, {.batch_sampler = parts});
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    loader.set_epoch(epoch);  // another order
    for (const ladder::Batch& own : loader) {
      const auto part = own.to(device);
      const auto scores = net->forward(part.inputs.only());
      part.num_items().mean(loss_sum(scores, part.targets)).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  ladder::on_rank_0(group, "save the weights", [&] { ladder::save_model(*net, path); });
  // #endregion divided-data
  const auto part = (*loader.begin()).to(device);
  std::int64_t step = 1;
  // #region recorded
  ladder::Fingerprint fingerprint(ladder::Fingerprint::path_beside(runs, group.rank()),
                                  /*interval=*/1, group.rank(), group.world_size());
  fingerprint.watch(*net);  // before the first step
  const auto loss = loss_of(net->forward(part.inputs.only()), part.targets);
  loss.backward();
  optimizer.step();
  fingerprint.record(step++, part, loss, *net);
  optimizer.zero_grad();
  // #endregion recorded
}

// #region whole-program
void train(const std::string& folder, std::int64_t epochs) {
  ladder::Accelerator accelerator(
      {.gradient_accumulation = {.num_steps = 2}, .project = {.project_dir = folder}});
  torch::manual_seed(42);  // equal weights on all processes
  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(784, 10));
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::StepLR steps(sgd, 100, 0.5);
  const ladder::DataLoader images(images_of(Split::kTrain), {.batch_size = 16, .shuffle = true});
  auto [loader, model, optimizer, scheduler] = accelerator.prepare(images, net, sgd, steps);
  const auto test = accelerator.prepare_eval_loader(ladder::DataLoader(images_of(Split::kTest)));
  accelerator.load_state("auto");  // if there is a checkpoint
  while (loader.epoch() < epochs) {
    for (const ladder::Batch& batch : loader) {
      const auto accumulation = accelerator.accumulate(*model);
      const auto scores = model->forward(batch.inputs.only());
      const auto sum = torch::cross_entropy_loss(scores, batch.targets, {}, at::Reduction::Sum);
      accelerator.backward(batch.num_items().mean(sum));
      accelerator.clip_grad_norm_(model->parameters(), 1.0);
      optimizer->step();
      scheduler->step();
      optimizer->zero_grad();
    }
    accelerator.save_state();

    model->eval();
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> right;
    for (const ladder::Batch& batch : test) {
      const auto predicted = model->forward(batch.inputs.only()).argmax(1);
      right.push_back(accelerator.gather_for_metrics(predicted == batch.targets));  // each once
    }
    const auto mean = torch::cat(right).to(torch::kDouble).mean().item<double>();
    accelerator.print("accuracy " + std::to_string(mean));
    model->train();
  }
  accelerator.save_model(*model, folder + "/net.safetensors");
}
// #endregion whole-program

void loader_of_torch_data() {
  Accelerator accelerator({.cpu = true, .threads = 1, .quiet = true});
  torch::nn::Linear net(8, 2);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  torch::manual_seed(1);  // the same data on all processes
  auto data = torch::data::datasets::TensorDataset(torch::randn({20, 8}))
                  .map(torch::data::transforms::Stack<torch::data::TensorExample>());
  auto shuffled = torch::data::make_data_loader(std::move(data), 4);
  auto loader = accelerator.prepare(std::move(shuffled));
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    torch::manual_seed(42 + epoch);  // on all processes: begin() draws the order
    for (const auto& batch : loader) {
      const auto x = batch.data.to(accelerator.device());
      accelerator.backward(model->forward(x).square().mean());
      optimizer->step();
      optimizer->zero_grad();
    }
  }
}

void float16() {
  const auto group = init_process_group({.device = "cpu"});
  Matcher model;
  const GradientReducer reducer(model, group);
  SGD optimizer(model.parameters(), {.lr = 0.01});
  const Pairs some = {torch::randn({4, 8}), torch::randn({4, 4}), torch::randn(4)};
  const std::vector<Pairs> slices = {some, some};
  // #region float16
  ladder::GradScaler scaler;
  for (const Pairs& pairs : slices) {
    torch::Tensor score;
    {
      const ladder::Autocast autocast(torch::kCPU, torch::kFloat16);
      score = model.forward(pairs.images, pairs.texts);
    }
    const auto loss = loss_of(ladder::at_least_float32(score), pairs, group.world_size());
    scaler.scale(loss).backward();  // outside the guard
    scaler.step(optimizer);         // skipped on all ranks if a gradient is inf or NaN
    scaler.update();
    optimizer.zero_grad();
  }
  // #endregion float16
}

void what_travels() {
  const auto group = init_process_group({.device = "cpu"});
  // #region comm-hook
  ladder::DistributedDataParallelOptions options{
      .reducer = {.comm_hook = ladder::bf16_compress_hook()}};
  // #endregion comm-hook
  std::size_t bytes = 0;
  // #region own-hook
  const auto count = [&](const torch::Tensor& bucket, int world_size) {
    bytes += bucket.nbytes();
    return bucket.div(world_size);
  };
  ladder::CommHook counting{.encode = count,
                            .decode = [](const torch::Tensor& sum) { return sum; }};
  // #endregion own-hook
  const auto batch = first_batch();
  for (const auto& hook : {options.reducer.comm_hook.value(), counting}) {
    DistributedDataParallel model(std::make_shared<MyNet>(), group,
                                  {.reducer = {.comm_hook = hook}});
    loss_of(model.forward(batch.inputs), batch.targets).backward();
  }
  if (group.rank() == 0) std::cout << "sent " << bytes << " bytes" << std::endl;
}

// docs/same-weights.md

std::string exact_weights(const ProcessGroup& group) {
  const auto images = images_of(Split::kTrain);
  torch::manual_seed(42);
  const auto network = std::make_shared<MyNet>();
  const auto loss_sum = [](const torch::Tensor& scores, const torch::Tensor& labels) {
    return torch::cross_entropy_loss(scores, labels, {}, at::Reduction::Sum);
  };
  // #region exact
  const auto batches = ladder::divide_batches(images->size(), {.batch_size = 64,
                                                               .rank = group.rank(),
                                                               .world_size = group.world_size(),
                                                               .micro_batch = 16});
  const ladder::DataLoader loader(images, {.batch_sampler = batches});
  ladder::ExactDataParallel model(network, group, {.micro_batch = 16});
  ladder::SGD optimizer(model.parameters(), {.lr = 0.01});
  for (const ladder::Batch& batch : loader) {
    const auto scores = model.forward(batch.inputs);
    batch.num_items().mean(loss_sum, scores, batch.targets).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  // #endregion exact
  return weights_sha256(unwrapped_state_dict(model));
}

void exact_sums() {
  const auto group = init_process_group({.device = "cpu"});
  const bool equal = exact_weights(group) == exact_weights(ProcessGroup::single());
  if (group.rank() == 0) std::cout << "two ranks equal one: " << equal << std::endl;
}

// docs/reference/4-ddp-amp.md

void autocast_outside() {
  const Recipe recipe({.name = "convnet"});
  const auto network = recipe.make_model();
  Model& model = *network;
  const torch::Device device(torch::kCPU);
  const Batch batch = first_batch();
  GradScaler scaler({.enabled = false});
  // #region autocast-outside
  torch::Tensor scores;
  {
    const Autocast autocast(device, torch::kBFloat16);
    scores = model.forward(batch.inputs);
  }  // ends before backward, which takes the dtypes that forward took
  scaler.scale(recipe.loss(scores, batch)).backward();
  // #endregion autocast-outside
}

void clipping() {
  const Log log;
  const auto model = std::make_shared<MyNet>();
  SGD optimizer(model->parameters(), {.lr = 0.01});
  GradScaler scaler;
  const auto loss = loss_of(model->forward(first_batch().inputs), first_batch().targets);
  // #region clipping
  scaler.scale(loss).backward();
  scaler.unscale_(optimizer);
  torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
  const auto result = scaler.step(optimizer);
  scaler.update();
  if (!result.taken()) log.info("skipped a step");
  // #endregion clipping
}

// docs/reference/5-accelerator.md

struct Data {
  DataLoader train;
  DataLoader test;
};

std::shared_ptr<Model> make_model(const mnist::AcceleratedOptions& /*options*/,
                                  const Recipe& recipe) {
  torch::manual_seed(recipe.seed());
  return recipe.make_model();
}

void three_lines() {
  mnist::AcceleratedOptions options;
  options.accelerator = {.cpu = true, .threads = 1, .quiet = true};
  const Recipe recipe({.name = "convnet"});
  const Data data = {DataLoader(images_of(Split::kTrain)), DataLoader(images_of(Split::kTest))};
  // #region three-lines
  Accelerator accelerator(options.accelerator);
  auto network = make_model(options, recipe);
  auto adamw = recipe.make_optimizer(network->parameters());
  auto [train, test, model, optimizer] =
      accelerator.prepare(data.train, data.test, network, std::move(adamw));

  for (const Batch& batch : train) {
    const RandomScope random({recipe.seed(), batch.epoch, batch.positions});
    const auto loss = recipe.loss(model->forward(batch.inputs), batch);
    accelerator.backward(loss);
    optimizer->step();
    optimizer->zero_grad();
  }
  // #endregion three-lines

  // #region one-launch
  StepGraph graph(accelerator.device(), optimizer->optimizer());
  for (const Batch& batch : train) {
    const auto loss = graph.run(batch, [&, &model = model](const Batch& own) {
      const RandomScope random({recipe.seed(), own.epoch, own.positions});
      const auto loss_of_step = recipe.loss(model->forward(own.inputs), own);
      accelerator.backward(loss_of_step);
      return loss_of_step;
    });
    optimizer->step();
    optimizer->zero_grad();
  }
  // #endregion one-launch
}

// docs/reference/6-trainer.md

// #region own-loss
struct BasicTrainer : Trainer {
  using Trainer::Trainer;

 protected:
  LossOutput compute_loss(Model& model, const Inputs& inputs, const NumItems& items) override {
    const auto outputs = model.forward(inputs.at("x"));
    const auto sum = torch::nll_loss(outputs, inputs.at("labels"), {}, at::Reduction::Sum);
    return {items.mean(sum), outputs};
  }
};
// #endregion own-loss

// #region callback
struct StopAt98 : TrainerCallback {
  void on_evaluate(TrainerEvent& event) override {
    if (event.metrics->at("eval_accuracy") > 0.98) event.control.should_training_stop = true;
  }
};
// #endregion callback

void trainer() {
  TrainingArguments args;
  args.output_dir = "";
  args.use_cpu = true;
  args.disable_tqdm = true;
  args.eval_strategy = IntervalStrategy::kEpoch;
  args.save_strategy = SaveStrategy::kNo;
  args.metric_for_best_model = "accuracy";
  const Recipe recipe({.name = "basicnet"});
  // #region early-stopping
  const auto patience = std::make_shared<EarlyStoppingCallback>(
      EarlyStoppingOptions{.early_stopping_patience = 3, .early_stopping_threshold = 0.001});
  // #endregion early-stopping
  BasicTrainer trainer({.model_init = [&] { return recipe.make_model(); },
                        .args = args,
                        .train_dataset = images_of(Split::kTrain),
                        .eval_dataset = images_of(Split::kTest),
                        .compute_metrics = accuracy,
                        .callbacks = {patience, std::make_shared<StopAt98>()}});
  trainer.train();
}

}  // namespace

int main() {
  return call_and_report([] {
    for (const auto piece :
         {process_group, any_module, own_loop, float16, what_travels, exact_sums, autocast_outside,
          clipping, three_lines, trainer, loader_of_torch_data}) {
      spawn([&](int /*rank*/) { piece(); });
    }
    const TemporaryFolder folder;
    for (const int epochs : {1, 2}) {  // the second run resumes
      spawn([&](int /*rank*/) { train(folder.file("project"), epochs); });
    }
  });
}
