// SPDX-License-Identifier: Apache-2.0
#include "ladder/train/evaluate.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "ladder/core/error.h"

namespace ladder {

EvaluationCounter::EvaluationCounter(const Recipe& recipe, const torch::Device& device)
    : recipe_(recipe),
      correct_(torch::zeros({}, torch::dtype(torch::kInt64).device(device))),
      loss_sum_(torch::zeros({}, torch::dtype(torch::kFloat64).device(device))) {}

void EvaluationCounter::add(const torch::Tensor& output, const torch::Tensor& labels) {
  const auto prediction = output.argmax(/*dim=*/1, /*keepdim=*/true);
  correct_ += prediction.eq(labels.view_as(prediction)).sum();
  loss_sum_ += recipe_.loss_sum(output, labels);
  seen_ += labels.size(0);
}

Evaluation EvaluationCounter::result() const {
  return {correct_.item<std::int64_t>(), seen_, loss_sum_.item<double>()};
}

Evaluation evaluate(Model& model, const DataLoader& loader, const Recipe& recipe,
                    const torch::Device& device) {
  const torch::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  EvaluationCounter counter(recipe, device);
  for (const Batch& cpu_batch : loader) {
    const Batch batch = cpu_batch.to(device);
    counter.add(model.forward(batch.images), batch.labels);
  }
  model.train(was_training);
  return counter.result();
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
          sum_over_ranks(local.loss_sum, group)};
}

void require_all_seen(const Evaluation& total, std::int64_t expected) {
  if (total.seen != expected) throw DistributedError::images_counted(expected, total.seen);
}

}  // namespace ladder
