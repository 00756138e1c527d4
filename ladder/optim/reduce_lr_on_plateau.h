// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "ladder/optim/lr_scheduler.h"

namespace ladder {

enum class PlateauMode { kMin, kMax };    // a metric is better when it is lower, or higher
enum class ThresholdMode { kRel, kAbs };  // threshold relative to the best metric, or absolute

struct PlateauOptions {
  PlateauMode mode = PlateauMode::kMin;
  double factor = 0.1;         // the rate is multiplied by it; 0 <= factor < 1
  std::int64_t patience = 10;  // bad evaluations in a row without a drop; >= 0
  double threshold = 1e-4;     // a smaller improvement does not count
  ThresholdMode threshold_mode = ThresholdMode::kRel;
  std::int64_t cooldown = 0;  // evaluations after a drop that do not count; >= 0
  double min_lr = 0.0;        // the smallest rate
  double eps = 1e-8;          // smaller drops are not made
};

// Lowers the rate when a metric, such as the loss of an evaluation, has stopped improving.
//
// The state holds the best metric (best, "inf" or "-inf" before the first) and the evaluations
// since then (num_bad_epochs, cooldown_counter). All ranks must pass the same metric, or their
// learning rates and weights differ.
//
// Python's counterpart: torch.optim.lr_scheduler.ReduceLROnPlateau, with one min_lr for all groups.
class ReduceLROnPlateau : public LrScheduler {
 public:
  // Throws UsageError when an option is out of its range.
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options = {});

  // Sets the rates of the next steps from the metric of an evaluation. NaN is worse than any
  // metric.
  void step(double metric);

  // Throws UsageError: this schedule needs a metric.
  void step() override;

 protected:
  double next_lr(double base_lr, double present_lr) const override;
  nlohmann::json own_state() const override;
  std::function<void()> plan_own(const JsonReader& saved) override;

 private:
  bool is_better(double metric) const;

  PlateauOptions options_;
  double best_;
  std::int64_t num_bad_epochs_ = 0;
  std::int64_t cooldown_counter_ = 0;
  bool drops_ = false;  // in this step
};

}  // namespace ladder
