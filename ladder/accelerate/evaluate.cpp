// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/evaluate.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <tuple>

namespace ladder {

Evaluation evaluate(const Accelerator& accelerator, Model& model,
                    const AcceleratedDataLoader& loader, const Recipe& recipe) {
  const torch::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  EvaluationCounter counter(recipe, accelerator.device());
  for (const Batch& batch : loader) {
    const auto [output, labels] =
        accelerator.gather_for_metrics(std::tuple{model.forward(batch.images), batch.labels});
    counter.add(output, labels);
  }
  model.train(was_training);
  return counter.result();
}

}  // namespace ladder
