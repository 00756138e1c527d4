// SPDX-License-Identifier: Apache-2.0
#include "exercises/loop/loop.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <string>

#include "exercises/grader/grader.h"
#include "exercises/grader/images.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/sgd.h"
#include "mnist/dataset.h"

namespace ladder::exercises::loop {
namespace {

constexpr std::int64_t kBatch = 100;

DataLoader loader_of(std::shared_ptr<const Dataset> images) {
  return DataLoader(std::move(images), {.batch_size = kBatch, .shuffle = true});
}
DataLoader loader_of(std::int64_t size) { return loader_of(std::make_shared<Images>(size)); }

// SGD that counts its steps.
class CountedSgd : public SGD {
 public:
  using SGD::SGD;
  torch::Tensor step(LossClosure closure) override {
    ++steps;
    return SGD::step(std::move(closure));
  }

  int steps = 0;
};

// A model and what trains it.
struct Run {
  std::shared_ptr<Model> model = first_model(basicnet());
  std::shared_ptr<torch::optim::Optimizer> optimizer =
      std::make_shared<SGD>(model->parameters(), SgdOptions{.lr = 0.01});
  bool trained_in_eval_mode = false;

  double train(const Loop& yours, const DataLoader& loader) {
    const auto forward = [&](const Batch& batch) {
      if (!model->is_training()) trained_in_eval_mode = true;
      const RandomScope random({basicnet().seed(), batch.epoch, batch.positions});
      return model->forward(batch.inputs);
    };
    return yours.train_epoch(*model, loader, *optimizer, forward, basicnet().criterion());
  }

  // As stage 0. A batch shorter than kBatch has `last_weight`. Returns the losses of the samples.
  double train_as_stage_0(const DataLoader& loader, double last_weight = 1) {
    double total = 0;
    model->train();
    for (const Batch& batch : loader) {
      const auto loss = loss_of(*model, basicnet(), batch);
      (batch.size() < kBatch ? loss * last_weight : loss).backward();
      optimizer->step();
      optimizer->zero_grad();
      total += loss.item<double>() * static_cast<double>(batch.size());
    }
    return total / static_cast<double>(loader.dataset().size());
  }

  torch::Tensor weights() const { return flat_weights(*model); }
  torch::Tensor change() const { return weights() - flat_weights(*first_model(basicnet())); }
};

double apart(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).norm().item<double>();
}

void one_step(const Loop& yours) {
  Run mine;
  Run reference;
  const auto before = mine.weights();
  const auto optimizer =
      std::make_shared<CountedSgd>(mine.model->parameters(), SgdOptions{.lr = 0.01});
  mine.optimizer = optimizer;
  mine.model->eval();
  mine.train(yours, loader_of(kBatch));
  expect(!mine.trained_in_eval_mode, "a model in training mode", "evaluation mode",
         "model.train() is missing, so dropout does nothing");
  reference.train_as_stage_0(loader_of(kBatch));
  const double expected = apart(reference.weights(), before);
  const double times = apart(mine.weights(), before) / expected;
  const bool has_gradient = mine.model->parameters().front().grad().defined() &&
                            mine.model->parameters().front().grad().any().item<bool>();
  expect(std::abs(times - 1) < 1e-3, "the step of stage 0 for one batch",
         fmt::format("a step {:.2f} times as long", times),
         optimizer->steps == 0        ? "optimizer.step() is missing"
         : times == 0 && has_gradient ? "the step precedes backward"
         : times == 0 ? "zero_grad() follows backward directly, so the step has no gradients"
                      : "the loss is the sum over the batch, not the mean");
  result(mine.change());
}

void two_steps(const Loop& yours) {
  Run mine;
  Run reference;
  mine.train(yours, loader_of(2 * kBatch));
  reference.train_as_stage_0(loader_of(2 * kBatch));
  const double distance = apart(mine.weights(), reference.weights());
  expect(distance < 1e-6, "the weights of stage 0 after two batches",
         fmt::format("{:.1e} apart", distance),
         "zero_grad() is missing: backward adds to the gradients of the batch before");
  result(mine.change());
}

void short_last_batch(const Loop& yours) {
  constexpr std::int64_t kSize = 250;  // 100, 100 and 50
  Run mine;
  Run reference;
  Run divided;
  Run dropped;
  const double loss = mine.train(yours, loader_of(kSize));
  const double expected = reference.train_as_stage_0(loader_of(kSize));
  divided.train_as_stage_0(loader_of(kSize), 0.5);
  dropped.train_as_stage_0(loader_of(kSize), 0);
  const double distance = apart(mine.weights(), reference.weights());
  expect(distance < 1e-6, "the weights of stage 0 after batches of 100, 100 and 50",
         fmt::format("{:.1e} apart", distance),
         apart(mine.weights(), dropped.weights()) < 1e-6
             ? "the short last batch takes no step"
             : "the short last batch is divided by the batch size of the loader");
  Run last;
  double mean_of_means = 0;
  double after_step = 0;
  double last_loss = 0;
  for (const Batch& batch : loader_of(kSize)) {
    last_loss = loss_of(*last.model, basicnet(), batch).item<double>();
    run_backward(*last.model, basicnet(), batch);
    last.optimizer->step();
    mean_of_means += last_loss / 3;
    after_step += loss_of(*last.model, basicnet(), batch).item<double>() *
                  static_cast<double>(batch.size()) / static_cast<double>(kSize);
  }
  expect(std::abs(loss - expected) < 1e-5, fmt::format("a mean loss of {:.5f}", expected),
         fmt::format("{:.5f}", loss),
         std::abs(loss - mean_of_means) < 1e-5
             ? "the mean of the means of batches: the 50 samples count twice"
         : std::abs(loss - last_loss) < 1e-5 ? "the loss of the last batch alone"
         : std::abs(loss - after_step) < 1e-5
             ? "the losses of the weights after each step: keep that of the forward before it"
             : "the sum of the losses, divided by another number");
  result(mine.change());
  result(torch::tensor(loss));
}

std::shared_ptr<const Dataset> mnist_images() {
  return std::make_shared<mnist::Dataset>(
      LADDER_SOURCE_DIR "/data/mnist", mnist::Split::kTrain,
      mnist::DatasetOptions{basicnet().normalization(), /*limit=*/550});
}

void equals_stage_0(const Loop& yours) {
  const auto loader = loader_of(mnist_images());
  const auto hash_of = [&](const auto& train) {
    Run run;
    run.optimizer = basicnet().make_optimizer(run.model->parameters());
    train(run);
    return weights_sha256(state_dict(*run.model));
  };
  const auto got = hash_of([&](Run& run) { run.train(yours, loader); });
  const auto expected = hash_of([&](Run& run) { run.train_as_stage_0(loader); });
  expect(got == expected, fmt::format("weights {:.16}", expected),
         fmt::format("weights {:.16}", got),
         "the loss is computed in another order: divide the sum once, by batch.size()");
  result(got);
}

void grade(Grader& grader, const Loop& yours) {
  using Group = const ProcessGroup&;
  grader.property("one batch: the step of stage 0", 1, [&](Group) { one_step(yours); });
  grader.property("two batches: gradients start at zero", 1, [&](Group) { two_steps(yours); });
  grader.property("250 images in batches of 100: weights and mean loss", 1,
                  [&](Group) { short_last_batch(yours); });
  grader.property(
      "550 images of MNIST: the weights of stage 0, bit for bit", 1,
      [&](Group) { equals_stage_0(yours); }, /*seconds=*/30);
  grader.compare_times(
      1, "200 images", [&](Group) { Run().train(yours, loader_of(200)); },
      [](Group) { Run().train_as_stage_0(loader_of(200)); });
}

const Graded<Loop> graded("loop", grade);

}  // namespace
}  // namespace ladder::exercises::loop
