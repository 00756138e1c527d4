// SPDX-License-Identifier: Apache-2.0
#include "exercises/rank-0/rank-0.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "exercises/grader/grader.h"

namespace ladder::exercises::rank_0 {
namespace {

// Rank r has 10 (r + 1) samples with a loss of 1 + r + epoch each, and a fresh part.
double loss_of(int rank, int epoch) {
  return 1.0 + rank + epoch + 0.01 * static_cast<double>(fresh_seed() % 100);
}
std::int64_t samples_of(int rank) { return 10 * (rank + 1); }

std::string meaning_of_loss(double got, int epoch, int world_size) {
  double sum = 0;
  double means = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    sum += loss_of(rank, epoch) * static_cast<double>(samples_of(rank));
    means += loss_of(rank, epoch) / world_size;
  }
  const auto is = [&](double expected) { return std::abs(got - expected) < 1e-6; };
  if (is(loss_of(0, epoch))) return "the loss of rank 0 alone";
  if (is(means)) return "the mean of the means of ranks, which have different numbers of samples";
  if (is(sum / static_cast<double>(samples_of(0)))) {
    return "the sum of all ranks is divided by the samples of rank 0";
  }
  return "loss sums and samples have to be added up over the ranks before the division";
}

void logs(const Rank0& yours, const ProcessGroup& group) {
  for (const int epoch : {0, 1}) {
    std::vector<double> logged;
    yours.log_epoch(loss_of(group.rank(), epoch) * static_cast<double>(samples_of(group.rank())),
                    samples_of(group.rank()), group,
                    [&](double mean_loss) { logged.push_back(mean_loss); });
    const auto calls = group.all_gather_into_tensor(torch::tensor(std::ssize(logged)));
    const auto total = calls.sum().item<std::int64_t>();
    expect(
        calls[0].item<std::int64_t>() == 1 && total == 1, "one call of log, on rank 0",
        fmt::format("{} on rank 0, {} on the others", calls[0].item<std::int64_t>(),
                    total - calls[0].item<std::int64_t>()),
        total == group.world_size() ? "the `if` around log is gone" : "another rank than 0 logs");
    if (group.rank() != 0) continue;
    double sum = 0;
    double samples = 0;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      sum += loss_of(rank, epoch) * static_cast<double>(samples_of(rank));
      samples += static_cast<double>(samples_of(rank));
    }
    expect(std::abs(logged[0] - sum / samples) < 1e-6,
           fmt::format("a mean loss of {:.4f} in epoch {}", sum / samples, epoch),
           fmt::format("{:.4f}", logged[0]), meaning_of_loss(logged[0], epoch, group.world_size()));
    result(torch::tensor(logged[0]));
  }
}

void grade(Grader& grader, const Rank0& yours) {
  for (const int world_size : {1, 2, 3}) {
    grader.property(fmt::format("rank 0 of {} logs the mean loss of all", world_size), world_size,
                    [&](const ProcessGroup& group) { logs(yours, group); });
  }
}

const Graded<Rank0> graded("rank-0", grade);

}  // namespace
}  // namespace ladder::exercises::rank_0
