// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "exercises/exercise.h"
#include "exercises/zero/zero.h"
#include "ladder/comm/process_group.h"

namespace ladder::exercises {

// All weights of one layer, with padding, in memory that can be given back and got again. Tensors
// that share it, such as those that autograd saved for backward, stay valid, if the values return.
class WholeWeights {
 public:
  explicit WholeWeights(std::int64_t size)  // without memory
      : weights_(torch::empty({size}).requires_grad_()) {
    set_memory(0);
  }
  ~WholeWeights() { release(); }
  WholeWeights(const WholeWeights&) = delete;
  WholeWeights& operator=(const WholeWeights&) = delete;

  // Gets the memory, filled with NaN. Keeps memory that it has.
  void allocate() {
    if (has_memory()) return;
    set_memory(bytes());
    values().fill_(std::nan(""));
    living_bytes() += counted_ = bytes();
    most_bytes() = std::max(most_bytes(), living_bytes());
  }

  // Gives it back.
  void release() {
    set_memory(0);
    living_bytes() -= std::exchange(counted_, 0);
  }

  bool has_memory() const { return weights_.storage().nbytes() > 0; }

  // [size]. To compute with: backward adds their gradient to weights().mutable_grad().
  const torch::Tensor& weights() const { return weights_; }

  // The same memory, without autograd: to write into.
  torch::Tensor values() const { return weights_.variable_data(); }

  // Of all objects that live in this process, now and at most; the grader reads them.
  static std::int64_t& living_bytes() {
    static std::int64_t bytes = 0;
    return bytes;
  }
  static std::int64_t& most_bytes() {
    static std::int64_t bytes = 0;
    return bytes;
  }

 private:
  std::int64_t bytes() const {
    return weights_.numel() * static_cast<std::int64_t>(weights_.itemsize());
  }

  void set_memory(std::int64_t bytes) {
    auto* const storage = weights_.storage().unsafeGetStorageImpl();
    const auto size = static_cast<std::size_t>(bytes);
    storage->set_data_ptr_noswap(size > 0 ? storage->allocator()->allocate(size)
                                          : at::DataPtr(nullptr, storage->device()));
    storage->set_nbytes(size);
  }

  torch::Tensor weights_;
  std::int64_t counted_ = 0;
};

// One layer on one rank.
struct Unit {
  std::int64_t size = 0;                // weights of the layer, on all ranks
  torch::Tensor shard;                  // the weights of this rank
  torch::Tensor gradient;               // of the shard: the mean over the ranks
  std::unique_ptr<AdamPart> optimizer;  // of the shard
  std::unique_ptr<WholeWeights> whole;  // has memory only while the layer is whole
};

// Equal layers, one after another.
struct Network {
  // Runs a layer. `weights`: all of its weights, [size]. Turns [rows, width] into [rows, width].
  std::function<torch::Tensor(const torch::Tensor& weights, const torch::Tensor& x)> layer;
  // The mean over the rows of this rank.
  std::function<torch::Tensor(const torch::Tensor& output)> loss;
};

struct FullySharded {
  // Keeps the shard of this rank; `weights`, [size], are equal on all ranks.
  Unit (*shard)(const torch::Tensor& weights, const ProcessGroup& group);

  // Makes a layer whole. Returns its weights, [size], whose gradients go to unit.whole.
  torch::Tensor (*unshard)(Unit& unit, const ProcessGroup& group);

  // Follows the backward of a layer: turns its gradients into unit.gradient.
  void (*reduce_gradient)(Unit& unit, const ProcessGroup& group);

  // Forward, backward and step of all layers.
  void (*train_step)(std::vector<Unit>& units, const Network& network, const torch::Tensor& inputs,
                     const ProcessGroup& group);
};

}  // namespace ladder::exercises
