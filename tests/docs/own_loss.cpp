// SPDX-License-Identifier: Apache-2.0
// A Trainer with a loss of its own, in two processes. Shown and explained in docs/library.md.
#include <ladder/accelerate/function_launcher.h>
#include <ladder/core/exit_status.h>
#include <ladder/trainer/trainer.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

namespace {

// Points of a square, and whether each lies within a circle.
class Points : public ladder::Dataset {
 public:
  Points(std::int64_t size, std::uint64_t seed) {
    torch::manual_seed(seed);
    points_ = torch::rand({size, 2}) * 3.0 - 1.5;
    within_ = points_.square().sum(1).lt(1.0).to(torch::kInt64);
  }

  std::int64_t size() const override { return points_.size(0); }

  ladder::Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto rows = torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()));
    return {.inputs = points_.index_select(0, rows), .targets = within_.index_select(0, rows)};
  }

 private:
  torch::Tensor points_;
  torch::Tensor within_;
};

class Net : public ladder::Model {
 public:
  torch::Tensor forward(const ladder::Inputs& points) override {
    return out_->forward(torch::relu(in_->forward(points.only())));
  }

  std::shared_ptr<ladder::Model> new_like() const override {
    const ladder::RngStateGuard keep;
    auto copy = std::make_shared<Net>();
    ladder::copy_values(*this, *copy);
    return copy;
  }

 private:
  torch::nn::Linear in_ = register_module("in", torch::nn::Linear(2, 32));
  torch::nn::Linear out_ = register_module("out", torch::nn::Linear(32, 2));
};

// A point within the circle counts twice.
class CircleTrainer : public ladder::Trainer {
 public:
  using Trainer::Trainer;

 protected:
  ladder::LossOutput compute_loss(ladder::Model& model, const ladder::Inputs& inputs,
                                  const ladder::NumItems& num_items_in_batch) override {
    const auto outputs = model.forward(inputs.at("x"));
    const auto weight = torch::tensor({1.0F, 2.0F}, outputs.options());
    const auto sum =
        torch::cross_entropy_loss(outputs, inputs.at("labels"), weight, at::Reduction::Sum);
    return {num_items_in_batch.mean(sum), outputs};
  }
};

void train() {
  ladder::TrainingArguments args;
  args.output_dir = "";  // write nothing
  args.num_train_epochs = 3;
  args.per_device_train_batch_size = 63;  // of both processes together: 32 and 31
  args.accelerator_config = {.split_batches = true, .even_batches = false};
  args.learning_rate = 1e-2;
  args.logging_strategy = ladder::IntervalStrategy::kEpoch;
  args.eval_strategy = ladder::IntervalStrategy::kEpoch;
  args.save_strategy = ladder::SaveStrategy::kNo;
  args.disable_tqdm = true;
  args.use_cpu = true;

  CircleTrainer trainer({.model_init = [] { return std::make_shared<Net>(); },
                         .args = args,
                         .train_dataset = std::make_shared<Points>(4000, 1),
                         .eval_dataset = std::make_shared<Points>(1000, 2),
                         .compute_metrics = ladder::accuracy});
  trainer.train();
}

}  // namespace

int main() {
  return ladder::call_and_report(
      [] { ladder::function_launcher(train, std::tuple<>(), {.num_processes = 2}); });
}
