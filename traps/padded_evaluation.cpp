// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <string>

#include "ladder/core/error.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/monitor/evaluation.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

constexpr std::int64_t kTest = 10'000;
constexpr std::int64_t kRanks = 7;

// Of all ranks, one after another: samplers need no process group.
template <typename MakeSampler>
Evaluation evaluated(Model& model, const std::shared_ptr<const mnist::Dataset>& test,
                     const Recipe& recipe, const MakeSampler& make_sampler) {
  Evaluation total;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const DataLoader loader(test, {.batch_size = 500, .sampler = make_sampler(rank)});
    const auto part = evaluate(model, loader, recipe.criterion(), torch::kCPU);
    total.correct += part.correct;
    total.seen += part.seen;
  }
  return total;
}

Evaluation padded(Model& model, const std::shared_ptr<const mnist::Dataset>& test,
                  const Recipe& recipe, bool drop_last) {
  return evaluated(model, test, recipe, [&](std::int64_t rank) {
    return std::make_shared<DistributedSampler>(
        kTest, DistributedSamplerOptions{
                   .world_size = kRanks, .rank = rank, .shuffle = false, .drop_last = drop_last});
  });
}

std::string refusal_of(const Evaluation& counted) {
  return error_of<DistributedError>([&] { require_each_sample_once(counted, kTest); });
}

}  // namespace

void padded_evaluation() {
  const auto recipe = quick_recipe();
  const auto train = images_of(Split::kTrain, recipe, 3'200);
  const auto test = images_of(Split::kTest, recipe, kTest);
  const auto measure = [&] {
    const auto model = seeded_model(recipe);
    const auto optimizer = recipe.make_optimizer(model->parameters());
    train_epoch(*model, DataLoader(train, {.shuffle = true}), *optimizer, recipe);
    const auto repeated = padded(*model, test, recipe, false);
    const auto dropped = padded(*model, test, recipe, true);
    const auto exact = evaluated(*model, test, recipe, [](std::int64_t rank) {
      return std::make_shared<ExactEvalSampler>(kTest, ExactEvalSamplerOptions{kRanks, rank});
    });
    require_each_sample_once(exact, kTest);
    mistake("images counted", std::to_string(repeated.seen));
    mistake("accuracy", percent_text(repeated.accuracy()));
    mistake("counted with drop_last", std::to_string(dropped.seen));
    mistake("accuracy with drop_last", percent_text(dropped.accuracy()));
    guard("images counted", std::to_string(exact.seen));
    guard("accuracy", percent_text(exact.accuracy()));
    guard("error", refusal_of(repeated));
    guard("error with drop_last", refusal_of(dropped));
  };
  on_processes(1, measure, 2);
}

}  // namespace ladder::traps
