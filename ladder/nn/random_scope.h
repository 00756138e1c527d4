// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <utility>

#include "ladder/core/error.h"
#include "ladder/nn/dropout_mask.h"

namespace ladder {

// The random key of one training step, for the layers that run while the scope lives.
//
// Dropout with masks by position computes the mask of a sample from (seed, epoch, position of the
// sample, layer, element), without a generator. So the mask is the same for any number of ranks,
// under gradient accumulation and after a resume. One scope per step:
//
//     const RandomScope random({seed, epoch, batch.positions});
//     auto loss = criterion(model.forward(batch.inputs), batch);
//
// A training forward without a scope throws: a missing scope would repeat masks. Scopes belong to
// their thread and nest; the innermost is used. A thread that runs a part of the batch opens its
// own scope with the positions of that part.
class RandomScope {
 public:
  explicit RandomScope(RandomKey key) : key_(std::move(key)) { innermost() = this; }
  ~RandomScope() { innermost() = outer_; }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  // The key of this thread's innermost scope; without one, the first throws UsageError and the
  // second returns nullptr.
  static const RandomKey& current() {
    if (const RandomKey* key = find()) return *key;
    throw UsageError::missing("dropout or noise in training", "a RandomScope around the forward",
                              "write `const RandomScope random({seed, epoch, batch.positions});` "
                              "before it, or call model.eval()");
  }
  static const RandomKey* find() { return innermost() == nullptr ? nullptr : &innermost()->key_; }

  // For a layer without a number of its own: whether it is the only one in the innermost scope.
  static bool is_only(const void* layer) {
    if (innermost()->layer_ == nullptr) innermost()->layer_ = layer;
    return innermost()->layer_ == layer;
  }

 private:
  static const RandomScope*& innermost() {
    thread_local const RandomScope* scope = nullptr;
    return scope;
  }

  RandomKey key_;
  mutable const void* layer_ = nullptr;  // the first without a number
  const RandomScope* outer_ = innermost();
};

}  // namespace ladder
