// SPDX-License-Identifier: Apache-2.0
// Stage 6 (docs/stages/6-trainer.md): the Trainer. Code defines what to train, arguments how.
//
//   build/bin/stage6_trainer                        one process; --num-processes 2: two
//   build/bin/stage6_trainer --profile hf-defaults  with the defaults of transformers
//
// New against stage 5: Trainer and TrainingArguments. Gone: train_epoch, prepare, every loop.
#include <memory>
#include <utility>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/trainer/trainer.h"
#include "mnist/accelerated_main.h"
#include "mnist/dataset.h"
#include "mnist/recipe.h"
#include "mnist/record_callback.h"

namespace {

using namespace ladder;
using Options = mnist::TrainerRunOptions;

auto make_data(const Options& options, const mnist::Recipe& recipe) {
  return std::pair(mnist::load_train(options.data, recipe), mnist::load_test(options.data, recipe));
}

std::shared_ptr<Model> make_model(const Options& options, const mnist::Recipe& recipe) {
  auto model = recipe.make_model();
  if (!options.load.empty()) load_model(*model, options.load);
  return model;
}

// The train_trainer_ddp of the tutorials: runs in every process.
void run(const Options& options) {
  const auto& args = options.training;
  const mnist::Recipe recipe(options.recipe);
  const auto record = std::make_shared<mnist::RecordCallback>(options, recipe);
  const auto [train, test] = make_data(options, recipe);
  const auto optimizer = [&](const Model& net) { return recipe.make_optimizer(net.parameters()); };
  Trainer trainer({.model_init = [&] { return make_model(options, recipe); },
                   .args = args,
                   .train_dataset = train,
                   .eval_dataset = test,
                   .compute_loss_func = recipe.loss_function(),
                   .compute_metrics = accuracy,
                   .callbacks = {record},
                   .optimizer_init = options.parity ? optimizer : OptimizerFunction(),
                   .train_transform = recipe.make_transform(options.data.augment),
                   .accelerator = options.accelerator});
  for (const auto& dataset : {train, test}) dataset->to(trainer.accelerator().device());
  const auto trained = args.do_train ? trainer.train(args.resume_from_checkpoint) : TrainOutput();
  if (!options.save.empty()) trainer.accelerator().save_model(trainer.model(), options.save);
  if (args.do_train) trainer.save_metrics("train", trained.metrics);
  if (args.do_eval) trainer.save_metrics("eval", trainer.evaluate());
  if (args.do_predict) trainer.save_metrics("test", trainer.predict().metrics);
}

}  // namespace

int main(int argc, char** argv) { return mnist::launch_main<Options>(argc, argv, run); }
