// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <chrono>
#include <string>

#include "ladder/core/clock.h"
#include "ladder/core/error.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/monitor/evaluation.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {

void test_on_rank_0() {
  using std::chrono::seconds;
  constexpr std::int64_t kTest = 1'000;
  constexpr seconds kTimeout{3};
  const auto recipe = quick_recipe();
  const auto test = images_of(Split::kTest, recipe, kTest);
  const auto local = [&](const ProcessGroup& group) {
    const auto part =
        std::make_shared<ExactEvalSampler>(kTest, ExactEvalSamplerOptions{2, group.rank()});
    return evaluate(*seeded_model(recipe), DataLoader(test, {.sampler = part}), recipe.criterion(),
                    torch::kCPU);
  };
  const auto wrong = [&](const ProcessGroup& group) {
    if (group.rank() == 0) {
      const auto evaluation = local(group);
      const double start = steady_seconds();
      const auto error = error_of<DistributedError>([&] { sum_over_ranks(evaluation, group); });
      mistake("timeout, seconds", std::to_string(kTimeout.count()));
      mistake("waited, seconds", fmt::format("{:.1f}", steady_seconds() - start));
      guard("error", error);
    }
    group.monitored_barrier(seconds(15));  // uses the store, so it cannot match the sum
  };
  const auto right = [&](const ProcessGroup& group) {
    const auto total = sum_over_ranks(local(group), group);
    if (group.rank() == 0) guard("images seen, both ranks", std::to_string(total.seen));
  };
  on_ranks(2, wrong, kTimeout);
  on_ranks(2, right);
}

}  // namespace ladder::traps
