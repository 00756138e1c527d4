// SPDX-License-Identifier: Apache-2.0
// Trains the network of ddp.cpp by a Trainer, without a loop:
//
//     build-examples/trainer --data data/mnist --nprocs 2
#include <ladder/accelerate/function_launcher.h>
#include <ladder/launch/exit_status.h>
#include <ladder/parallel/replica_check.h>
#include <ladder/trainer/trainer.h>

#include <cmath>

#include "pairs.h"

namespace {

class PairTrainer : public ladder::Trainer {
 public:
  using Trainer::Trainer;

 protected:
  ladder::LossOutput compute_loss(ladder::Model& model, const ladder::Inputs& inputs,
                                  const ladder::NumItems& num_items_in_batch) override {
    const auto scores = model.forward({{"left", inputs.at("left")}, {"right", inputs.at("right")}});
    return {num_items_in_batch.mean(pairs::loss_sum(scores, inputs.at("same"))), scores};
  }
};

// The named tensors that compute_loss takes; "same" is one of args.label_names.
ladder::Inputs collate(const ladder::Batch& batch) {
  return {{"left", batch.inputs.at("left")},
          {"right", batch.inputs.at("right")},
          {"same", batch.targets}};
}

ladder::Metrics compute_metrics(const ladder::EvalPrediction& prediction) {
  const auto right = pairs::correct(prediction.predictions, prediction.label_ids.at("same"));
  return {{"accuracy", right.mean().item<double>()}};
}

// Prints a line after each evaluation, on the main process.
class PrintEpoch : public ladder::TrainerCallback {
 public:
  void on_evaluate(ladder::TrainerEvent& event) override {
    event.accelerator.print(pairs::epoch_line(std::lround(event.state.epoch),
                                              event.metrics->at("eval_loss"),
                                              event.metrics->at("eval_accuracy")));
  }
};

void train(const pairs::Settings& settings) {
  ladder::TrainingArguments args;
  args.output_dir = "";  // writes no files
  args.num_train_epochs = static_cast<double>(settings.epochs);
  args.per_device_train_batch_size = pairs::kBatchSize;  // of all processes: see the next line
  args.accelerator_config = {.split_batches = true, .even_batches = false};
  args.per_device_eval_batch_size = 500;
  args.learning_rate = pairs::kLearningRate;
  args.lr_scheduler_type = ladder::SchedulerType::kConstant;
  args.max_grad_norm = 0;
  args.eval_strategy = ladder::IntervalStrategy::kEpoch;
  args.save_strategy = ladder::SaveStrategy::kNo;
  args.label_names = {"same"};
  args.seed = settings.seed;

  PairTrainer trainer(
      {.model_init = [] { return std::make_shared<pairs::PairNet>(); },
       .args = args,
       .train_dataset = pairs::train_pairs(settings),
       .eval_dataset = pairs::test_pairs(settings),
       .data_collator = collate,
       .compute_metrics = compute_metrics,
       .callbacks = {std::make_shared<PrintEpoch>()},
       .train_transform = std::make_shared<pairs::SwapSides>(settings.seed),
       .accelerator = {.quiet = true}});  // PrintEpoch takes the place of the Trainer's own lines
  trainer.train();
  ladder::require_equal_replicas(trainer.model(), trainer.accelerator().process_group());
  trainer.accelerator().print(pairs::weights_line(trainer.model()));
}

}  // namespace

int main(int argc, char** argv) {
  return ladder::call_and_report([&] {
    const auto settings = pairs::settings_from(argc, argv);
    ladder::function_launcher([&] { train(settings); }, {}, {.num_processes = settings.nprocs});
  });
}
