// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "exercises/exercise.h"
#include "ladder/comm/process_group.h"
#include "ladder/data/dataset.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/nn/model.h"

namespace ladder::exercises {

struct PaddedEvaluation {
  // The counts over all samples of `test`, the same on every rank.
  Evaluation (*evaluate_on_all)(Model& model, const std::shared_ptr<const Dataset>& test,
                                const LossSum& loss_sum, const ProcessGroup& group);
};

}  // namespace ladder::exercises
