// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/random_scope.h"

#include <utility>

#include "ladder/core/error.h"

namespace ladder {
namespace {

const RandomScope*& innermost() {
  thread_local const RandomScope* scope = nullptr;
  return scope;
}

}  // namespace

RandomScope::RandomScope(RandomKey key) : key_(std::move(key)), outer_(innermost()) {
  innermost() = this;
}

RandomScope::~RandomScope() { innermost() = outer_; }

const RandomKey* RandomScope::find() {
  return innermost() == nullptr ? nullptr : &innermost()->key_;
}

const RandomKey& RandomScope::current() {
  if (innermost() == nullptr) {
    throw UsageError::missing("dropout in training mode", "a RandomScope around the forward",
                              "write `const RandomScope random({seed, epoch, batch.positions});` "
                              "before it, or call model.eval()");
  }
  return innermost()->key_;
}

}  // namespace ladder
