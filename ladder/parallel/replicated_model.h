// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ladder/nn/model.h"
#include "ladder/parallel/gradient_reducer.h"

namespace ladder {

// A Model around one of which every rank has a replica; backward adds the gradients over the ranks.
class ReplicatedModel : public ModelWrapper {
 public:
  using ModelWrapper::ModelWrapper;

  // For gradient accumulation: while the result lives, forwards whose backwards add no gradients
  // over the ranks. The next backward adds theirs too.
  [[nodiscard]] virtual GradientReducer::NoSync no_sync(bool when = true) = 0;

  // Drops gradients of such backwards that are not in the parameters' grad().
  virtual void forget() {}
};

}  // namespace ladder
