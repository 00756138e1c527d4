// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "exercises/exercise.h"
#include "ladder/comm/process_group.h"
#include "ladder/core/error.h"

namespace ladder::exercises {

// Adam for a range of weights, with its state: two numbers per weight. Each weight depends on its
// own numbers alone, so a range gets the same bits as within all weights.
class AdamPart {
 public:
  explicit AdamPart(std::int64_t size) : mean_(torch::zeros({size})), square_(mean_.clone()) {
    living_bytes() += state_bytes();
  }
  ~AdamPart() { living_bytes() -= state_bytes(); }
  AdamPart(const AdamPart&) = delete;
  AdamPart& operator=(const AdamPart&) = delete;

  // Overwrites `weights`. Both [size].
  void step(torch::Tensor weights, const torch::Tensor& gradients) {
    if (weights.sizes() != mean_.sizes() || gradients.sizes() != mean_.sizes()) {
      throw UsageError::malformed(
          "AdamPart::step", fmt::format("{} weights and gradients, as constructed", mean_.numel()),
          fmt::format("{} weights, {} gradients", weights.numel(), gradients.numel()),
          "the constructor and step() must cut the same ranges");
    }
    const torch::NoGradGuard no_grad;
    ++steps_;
    mean_.mul_(0.9).add_(gradients * 0.1);
    square_.mul_(0.999).add_(gradients * gradients * 0.001);
    const double length = 1e-3 / (1 - std::pow(0.9, steps_));
    const double root = std::sqrt(1 - std::pow(0.999, steps_));
    weights.sub_(mean_ * length / (square_.sqrt() / root + 1e-8));
  }

  // Of all objects that live in this process; the grader reads it.
  static std::int64_t& living_bytes() {
    static std::int64_t bytes = 0;
    return bytes;
  }

 private:
  std::int64_t state_bytes() const {
    return static_cast<std::int64_t>(mean_.nbytes() + square_.nbytes());
  }

  torch::Tensor mean_;
  torch::Tensor square_;
  int steps_ = 0;
};

// Adam, with its state divided among the ranks.
class DividedOptimizer {
 public:
  DividedOptimizer() = default;
  virtual ~DividedOptimizer() = default;
  DividedOptimizer(const DividedOptimizer&) = delete;
  DividedOptimizer& operator=(const DividedOptimizer&) = delete;

  // Steps all weights by their gradients, which are equal on all ranks. A collective.
  virtual void step() = 0;
};

struct Zero {
  std::unique_ptr<DividedOptimizer> (*make_optimizer)(const std::vector<torch::Tensor>& parameters,
                                                      const ProcessGroup& group);
};

}  // namespace ladder::exercises
