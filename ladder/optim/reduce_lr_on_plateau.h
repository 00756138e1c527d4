// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "ladder/optim/lr_scheduler.h"

namespace ladder {

enum class PlateauMode { kMin, kMax };    // is a metric better when it is lower, or higher?
enum class ThresholdMode { kRel, kAbs };  // threshold as a part of the best metric, or itself

struct PlateauOptions {
  PlateauMode mode = PlateauMode::kMin;
  double factor = 0.1;         // the rate is multiplied by it; 0 <= factor < 1
  std::int64_t patience = 10;  // bad evaluations in a row that are let pass; >= 0
  double threshold = 1e-4;     // by less than this better is not better
  ThresholdMode threshold_mode = ThresholdMode::kRel;
  std::int64_t cooldown = 0;  // evaluations after a drop that do not count; >= 0
  double min_lr = 0.0;        // no rate is made lower
  double eps = 1e-8;          // a rate that would fall by no more than this stays
};

// Lowers the rate when a metric, such as the loss of an evaluation, has stopped getting better:
// steps that were right at first are too long near the bottom.
//
// Of the metrics it remembers the best one, and how many since were no better. That is part of its
// state, as best ("inf" or "-inf" before the first), num_bad_epochs and cooldown_counter. All ranks
// must give it the same metric: the learning rate is part of what keeps replicas equal.
//
// Python's counterpart: torch.optim.lr_scheduler.ReduceLROnPlateau, with one min_lr for all groups.
class ReduceLROnPlateau : public LrScheduler {
 public:
  // Throws UsageError when an option is out of its range.
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options = {});

  // Takes the metric of an evaluation and sets the rates of the steps that follow. A metric of NaN
  // is worse than any.
  void step(double metric);

  // Throws UsageError: it is not for every step or epoch, and without a metric it can do nothing.
  void step() override;

 protected:
  double next_lr(double base_lr, double present_lr) const override;
  nlohmann::json own_state() const override;
  std::function<void()> plan_own(const SavedSchedule& saved) override;

 private:
  bool is_better(double metric) const;

  PlateauOptions options_;
  double best_;
  std::int64_t num_bad_epochs_ = 0;
  std::int64_t cooldown_counter_ = 0;
  bool drops_ = false;  // in this step
};

}  // namespace ladder
