// SPDX-License-Identifier: Apache-2.0
#include "ladder/monitor/evaluation.h"

#include <fmt/core.h>
#include <torch/utils.h>

#include <utility>

#include "ladder/core/error.h"

namespace ladder {

ClassificationMeter::ClassificationMeter(LossSum loss_sum, const torch::Device& device)
    : loss_sum_of_(std::move(loss_sum)),
      correct_(torch::zeros({}, torch::dtype(torch::kInt64).device(device))),
      loss_sum_(torch::zeros({}, torch::dtype(torch::kFloat64).device(device))) {}

void ClassificationMeter::add(const torch::Tensor& output, const torch::Tensor& targets) {
  const auto prediction = output.argmax(/*dim=*/1);
  const auto is_right = prediction.eq(targets);
  correct_ += is_right.sum();
  wrong_.push_back(prediction.masked_fill(is_right, -1));
  loss_sum_ += loss_sum_of_(output, targets);
  seen_ += targets.size(0);
}

Evaluation ClassificationMeter::result() const {
  Evaluation result{correct_.item<std::int64_t>(), seen_, loss_sum_.item<double>(), {}};
  if (wrong_.empty()) return result;
  const auto wrong = torch::cat(wrong_).cpu();
  const auto* const classes = wrong.const_data_ptr<std::int64_t>();
  for (std::int64_t index = 0; index < wrong.numel(); ++index) {
    if (classes[index] >= 0) result.misclassified.push_back({index, classes[index]});
  }
  return result;
}

Evaluation evaluate(Model& model, const DataLoader& loader, const LossSum& loss_sum,
                    const torch::Device& device) {
  const torch::NoGradGuard no_grad;
  const EvalGuard eval(model);
  ClassificationMeter meter(loss_sum, device);
  for (const Batch& cpu_batch : loader) {
    const Batch batch = cpu_batch.to(device);
    meter.add(model.forward(batch.inputs), batch.targets);
  }
  return meter.result();
}

double sum_over_ranks(double value, const ProcessGroup& group) {
  auto sum = torch::tensor({value}, torch::kFloat64);
  group.all_reduce(sum);
  return sum.item<double>();
}

Evaluation sum_over_ranks(const Evaluation& local, const ProcessGroup& group) {
  auto counts = torch::tensor({local.correct, local.seen}, torch::kInt64);
  group.all_reduce(counts);
  return {counts[0].item<std::int64_t>(), counts[1].item<std::int64_t>(),
          sum_over_ranks(local.loss_sum, group),
          group.world_size() == 1 ? local.misclassified : std::vector<Misclassified>()};
}

void require_each_sample_once(const Evaluation& total, std::int64_t expected) {
  if (total.seen == expected) return;
  throw DistributedError::of("evaluation", fmt::format("{} samples, each counted once", expected),
                             fmt::format("{}", total.seen),
                             "give each rank its own part of the test set, without padding");
}

}  // namespace ladder
