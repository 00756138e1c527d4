// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ladder/accelerate/accelerator.h"
#include "ladder/train/evaluate.h"
#include "ladder/train/recipe.h"

namespace ladder {

// Runs a prepared model over a prepared loader, in evaluation mode and without gradients, and
// counts every sample of all processes once: each batch's outputs are gathered and freed of
// repetitions (gather_for_metrics). The result is the same on all. A collective at each batch.
//
// Counting on each process and adding up would be wrong where even_batches repeats samples; and
// dividing one process's count by the size of the whole set gives 1/N of the accuracy.
Evaluation evaluate(const Accelerator& accelerator, Model& model,
                    const AcceleratedDataLoader& loader, const Recipe& recipe);

}  // namespace ladder
