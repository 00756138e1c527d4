// SPDX-License-Identifier: Apache-2.0
// Checkpoints that version 0.2 wrote, in tests/golden/checkpoints, are resumed. Each was written
// after three of six steps, by this test with the library of that version:
//
//     LADDER_WRITE_CHECKPOINTS=FOLDER build/bin/checkpoint_ranks_test
//     --gtest_filter=*OldCheckpoint*
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/checkpoint/snapshot.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/optim/sgd.h"
#include "tests/support/accelerators.h"
#include "tests/support/scripted_trainer.h"
#include "tests/support/small_net.h"

namespace ladder {
namespace {

constexpr std::int64_t kSteps = 6;
constexpr std::int64_t kSaved = 3;  // steps of the checkpoint

struct Count {
  std::int64_t steps = 0;
  nlohmann::json state_dict() const { return {{"steps", steps}}; }
  void load_state_dict(const nlohmann::json& state, std::string_view /*origin*/) {
    steps = state.at("steps");
  }
};

// What a run does with `path`: resume from it if it is there, else save there after kSaved steps,
// or neither if it is empty. Returns the weights in the end.
using Training = std::function<torch::Tensor(Accelerators& accelerators, const std::string& path)>;

// Two networks: one with objects of this library, one with those of LibTorch.
torch::Tensor accelerated(Accelerators& accelerators, const std::string& path,
                          AcceleratorOptions options) {
  const auto accelerator = accelerators.make(std::move(options));
  Count count;
  accelerator->register_for_checkpointing(count);
  auto network = small_net();
  torch::optim::Adam adam(network->parameters(), torch::optim::AdamOptions(0.1));
  auto scheduler = std::make_shared<torch::optim::StepLR>(adam, 2, 0.5);
  auto own = small_net();
  const auto adamw = std::make_shared<AdamW>(own->parameters(), AdamWOptions{.lr = 0.1});
  const auto step_lr =
      std::make_shared<StepLR>(*adamw, StepLrOptions{.step_size = 2, .gamma = 0.5});
  auto [loader, first, of_first, its_schedule, second, of_second, its_own] =
      accelerator->prepare(image_loader(23, 4), network, adam, scheduler, own, adamw,
                           std::shared_ptr<LrScheduler>(step_lr));
  if (std::filesystem::exists(path)) accelerator->load_state(path);
  while (count.steps < kSteps) {
    for (const Batch& batch : loader) {
      const auto loss_of = [&](Model& model) {
        const RandomScope random({1, batch.epoch, batch.positions});
        return basicnet().loss(model.forward(batch.inputs), batch);
      };
      const auto loss = loss_of(*first) + loss_of(*second);
      accelerator->backward(loss);
      of_first->step();
      of_second->step();
      its_schedule->step();
      its_own->step();
      of_first->zero_grad();
      of_second->zero_grad();
      if (++count.steps == kSaved && !path.empty()) accelerator->save_state(path);
      if (count.steps == kSteps) break;
    }
  }
  return torch::cat({flat_weights(*first), flat_weights(*second)});
}

torch::Tensor divided(Accelerators& accelerators, const std::string& path) {
  const auto accelerator = accelerators.make({.zero_redundancy = true});
  auto network = small_net();
  auto [loader, model, optimizer] =
      accelerator->prepare(image_loader(23, 4), network,
                           std::make_shared<AdamW>(network->parameters(), AdamWOptions{.lr = 0.1}));
  const bool resumes = std::filesystem::exists(path);
  if (resumes) accelerator->load_state(path);
  std::int64_t steps = resumes ? kSaved : 0;
  for (const Batch& batch : loader) {
    run_backward(*accelerator, *model, basicnet(), batch);
    optimizer->step();
    optimizer->zero_grad();
    if (++steps == kSaved && !path.empty()) accelerator->save_state(path);
  }
  return flat_weights(*model);
}

torch::Tensor by_hand(Accelerators& accelerators, const std::string& path) {
  const auto accelerator = accelerators.make();
  const auto& group = accelerator->process_group();
  DataLoader loader(image_loader(23, 4).shared_dataset(),
                    {.batch_sampler = divide_batches(23, {.batch_size = 4, .seed = 5})});
  const auto model = small_net(DropoutMasks::kByGenerator);
  SGD optimizer(model->parameters(), {.lr = 0.1, .momentum = 0.9});
  StepLR scheduler(optimizer, {.step_size = 1, .gamma = 0.5});
  Snapshot snapshot({.path = path, .steps = path.empty() ? 0 : kSaved}, group, *model, optimizer,
                    scheduler);
  TrainingMonitor monitor({.quiet = true}, {.group = group}, *model, loader.size());
  torch::manual_seed(1);
  snapshot.resume(loader, monitor, Log({.quiet = true}));
  loader.set_epoch(0);
  monitor.begin_epoch(1, 1, loader.first_batch());
  for (const Batch& batch : loader) {
    const auto loss = basicnet().loss(model->forward(batch.inputs), batch);
    loss.backward();
    optimizer.step();
    monitor.step(batch, loss);
    optimizer.zero_grad();
    if (monitor.steps() == kSaved) snapshot.after_step();
  }
  return flat_weights(*model);
}

torch::Tensor of_a_trainer(Accelerators& /*accelerators*/, const std::string& path) {
  const bool resumes = std::filesystem::exists(path);
  const TemporaryFolder folder;
  TrainingArguments args;
  args.output_dir = resumes || path.empty() ? folder.file("out") : path;
  args.max_steps = kSteps;
  args.learning_rate = 0.1;
  args.warmup_steps = 1;
  args.save_steps = kSaved;
  args.save_total_limit = 2;
  args.per_device_train_batch_size = 4;
  Trainer trainer(scripted::options_with(args, 23, 0));
  trainer.train(resumes ? path + "/checkpoint-3" : "");
  if (!resumes && !path.empty()) std::filesystem::remove_all(path + "/checkpoint-6");
  return flat_weights(trainer.model());
}

struct Kind {
  const char* name;
  int world_size;
  Training train;
};

std::vector<Kind> kinds() {
  return {
      {"accelerator", 1,
       [](auto& accelerators, const auto& path) { return accelerated(accelerators, path, {}); }},
      {"exact", 1,
       [](auto& accelerators, const auto& path) {
         return accelerated(accelerators, path,
                            {.exact_sums = ExactDataParallelOptions{.micro_batch = 2}});
       }},
      {"zero_redundancy", 2, divided},
      {"snapshot", 1, by_hand},
      {"trainer", 1, of_a_trainer}};
}

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class OldCheckpoint : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Of, OldCheckpoint, testing::ValuesIn(kinds()),
                         [](const auto& kind) { return kind.param.name; });

// Within 1e-5: another CPU had other last bits in the first three steps.
TEST_P(OldCheckpoint, GoesOnToTheWeightsOfARunWithoutAStop) {
  const auto& kind = GetParam();
  run_accelerators(kind.world_size, [&](Accelerators& accelerators) {
    if (const char* const folder = getenv("LADDER_WRITE_CHECKPOINTS")) {
      kind.train(accelerators, std::string(folder) + "/" + kind.name);
      return;
    }
    const auto path = accelerators.folder().file(kind.name);
    if (getenv("RANK") == std::string("0")) {
      std::filesystem::copy(std::string(LADDER_SOURCE_DIR "/tests/golden/checkpoints/") + kind.name,
                            path, std::filesystem::copy_options::recursive);
    }
    const auto whole = kind.train(accelerators, "");
    const auto resumed = kind.train(accelerators, path);
    EXPECT_LT(relative_difference(resumed, whole), 1e-5);
  });
}

}  // namespace
}  // namespace ladder
