// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cmath>
#include <string>

#include "ladder/core/error.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {

void accuracy_divided() {
  constexpr std::int64_t kTest = 2'000;
  const auto recipe = quick_recipe();
  const auto train = images_of(Split::kTrain, recipe, 6'400);
  const auto test = images_of(Split::kTest, recipe, kTest);
  on_ranks(2, [&](const ProcessGroup& group) {
    DistributedDataParallel model(seeded_model(recipe), group);
    const auto optimizer = recipe.make_optimizer(model.parameters());
    train_epoch(model, divided_loader(train, group), *optimizer, recipe);
    const auto part =
        std::make_shared<ExactEvalSampler>(kTest, ExactEvalSamplerOptions{2, group.rank()});
    const auto local =
        evaluate(model, DataLoader(test, {.sampler = part}), recipe.criterion(), torch::kCPU);
    const auto total = sum_over_ranks(local, group);
    // Python: 100. * correct / len(test_loader.dataset), of this rank's correct.
    const double own = 100.0 * static_cast<double>(local.correct) / kTest;
    const auto divided = group.all_gather_into_tensor(torch::tensor(own, torch::kFloat64));
    const auto error = error_of<DistributedError>([&] { require_each_sample_once(local, kTest); });
    require(std::abs(divided.sum().item<double>() - total.accuracy()) < 0.01,
            "the accuracies of the ranks do not add up to the total");
    if (group.rank() != 0) return;
    mistake("accuracy on rank 0", percent_text(divided[0].item<double>()));
    mistake("accuracy on rank 1", percent_text(divided[1].item<double>()));
    guard("images seen", std::to_string(total.seen));
    guard("accuracy", percent_text(total.accuracy()));
    guard("error", error);
  });
}

}  // namespace ladder::traps
