// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "ladder/data/batch.h"

namespace ladder {

// One walk through an epoch: hands out the batches one after the other, and nothing at the end.
class BatchSource {
 public:
  BatchSource() = default;
  virtual ~BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  virtual std::optional<Batch> next() = 0;
};

// The iterator of a walk, for range-based for; its end is std::default_sentinel. A batch is asked
// for when the loop is done with the one before.
class BatchIterator {
 public:
  explicit BatchIterator(std::unique_ptr<BatchSource> walk) : walk_(std::move(walk)) { ++*this; }

  const Batch& operator*() const { return batch_; }
  BatchIterator& operator++() {
    auto next = walk_->next();
    at_end_ = !next.has_value();
    batch_ = std::move(next).value_or(Batch{});
    return *this;
  }
  bool operator==(std::default_sentinel_t) const { return at_end_; }

 private:
  std::unique_ptr<BatchSource> walk_;
  Batch batch_;
  bool at_end_ = false;
};

}  // namespace ladder
