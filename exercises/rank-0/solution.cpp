// SPDX-License-Identifier: Apache-2.0
// Exercise 14: a repair of a collective that one rank alone calls.
#include "exercises/rank-0/rank-0.h"

#include <torch/types.h>

namespace {

using namespace ladder;
using namespace ladder::exercises;

// Ends an epoch: rank 0 logs the mean loss over the samples of all ranks.
void log_epoch(double loss_sum, std::int64_t samples, const ProcessGroup& group,
               const std::function<void(double mean_loss)>& log) {
  // solution
  // stub: if (group.rank() == 0) {
  // stub:   auto totals = torch::tensor({loss_sum, static_cast<double>(samples)}, torch::kFloat64);
  // stub:   group.all_reduce(totals);
  // stub:   log(totals[0].item<double>() / totals[1].item<double>());
  // stub: }
  auto totals = torch::tensor({loss_sum, static_cast<double>(samples)}, torch::kFloat64);
  group.all_reduce(totals);
  if (group.rank() == 0) {
    log(totals[0].item<double>() / totals[1].item<double>());
  }
  // end
}

const Submission submission(Rank0{log_epoch});

}  // namespace
