// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>

#include "exercises/exercise.h"
#include "ladder/trainer/trainer.h"

namespace ladder::exercises {

struct TrainerParts {
  // The mean of the cross-entropy over the samples that `items` counts.
  torch::Tensor (*compute_loss)(const torch::Tensor& outputs, const torch::Tensor& labels,
                                const NumItems& items);

  // A metric "error": the share of samples whose label does not have the highest score.
  Metrics (*compute_metrics)(const EvalPrediction& prediction);

  // Stops the training after `patience` evaluations in a row without a new lowest "eval_loss".
  std::shared_ptr<TrainerCallback> (*make_stopper)(int patience);
};

}  // namespace ladder::exercises
