// SPDX-License-Identifier: Apache-2.0
// Stage 6: the Trainer. No loop: the program says what to train; how is a list of arguments.
//
//   build/bin/stage6_trainer                        one process; --num-processes 2: two
//   build/bin/stage6_trainer --profile hf-defaults  with the defaults of transformers
//
// New against stage 5: Trainer and TrainingArguments. Gone: train_epoch, prepare, every loop.
#include <memory>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/data/mnist_dataset.h"
#include "ladder/stage/run_main.h"
#include "ladder/trainer/run_record_callback.h"
#include "ladder/trainer/trainer.h"

namespace {

using namespace ladder;

std::shared_ptr<const Dataset> make_data(const RunOptions& options, const Recipe& recipe,
                                         Split split, std::int64_t limit) {
  const MnistOptions mnist = {recipe.normalization(), limit};
  return std::make_shared<MnistDataset>(options.data_root, split, mnist);
}

std::shared_ptr<Model> make_model(const RunOptions& options, const Recipe& recipe) {
  auto model = recipe.make_model();
  if (!options.load.empty()) load_model(*model, options.load);
  return model;
}

// What the tutorials call train_trainer_ddp: runs in every process.
void run(const RunOptions& options) {
  const auto& args = options.training;
  const Recipe recipe(options.recipe);
  const auto record = std::make_shared<RunRecordCallback>(options.record, recipe);
  const auto loss = [&](const auto& outputs, const auto& labels, const NumItems& items) {
    return recipe.loss(outputs, labels, items);
  };
  const auto optimizer = [&](const Model& net) { return recipe.make_optimizer(net.parameters()); };
  Trainer trainer({.model_init = [&] { return make_model(options, recipe); },
                   .args = args,
                   .train_dataset = make_data(options, recipe, Split::kTrain, options.limit_train),
                   .eval_dataset = make_data(options, recipe, Split::kTest, options.limit_test),
                   .compute_loss_func = loss,
                   .compute_metrics = accuracy,
                   .callbacks = {record},
                   .optimizer_init = options.parity ? optimizer : OptimizerFunction(),
                   .train_transform = options.augment_shift ? recipe.make_shift() : nullptr,
                   .accelerator = options.accelerator});
  if (args.do_train)
    trainer.save_metrics("train", trainer.train(args.resume_from_checkpoint).metrics);
  if (args.do_eval) trainer.save_metrics("eval", trainer.evaluate());
  if (args.do_predict) trainer.save_metrics("test", trainer.predict().metrics);
  if (!options.save.empty()) trainer.accelerator().save_model(trainer.model(), options.save);
}

}  // namespace

int main(int argc, char** argv) { return ladder::launch_main(argc, argv, run, {.trainer = true}); }
