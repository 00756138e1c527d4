// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "ladder/optim/sgd.h"

namespace ladder {

// Of one parameter: for tests of what changes its learning rate.
inline SGD optimizer_with(double lr) { return SGD({torch::zeros({1})}, {.lr = lr}); }

}  // namespace ladder
