// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/links/spans.h"
#include "bench/micro/training_step.h"
#include "ladder/comm/process_group.h"
#include "ladder/parallel/comm_hook.h"

namespace ladder::bench {

// How a training loop averages its gradients.
struct Variant {
  enum class Averaging {
    kNone,     // not at all: the time of computing alone
    kWrapper,  // DistributedDataParallel, while backward runs
    kByHand,   // one all-reduce per parameter, after backward
  };

  std::string name;
  std::string recipe = "basicnet";
  Averaging averaging = Averaging::kWrapper;
  int accumulation = 1;                                // backwards per step, one of them averaged
  std::optional<double> bucket_cap_mb = std::nullopt;  // of DistributedDataParallel
  std::optional<CommHook> comm_hook = std::nullopt;    // of DistributedDataParallel
};

// Throws UsageError unless a variant has this name.
Variant variant_of(const std::string& name);
std::vector<std::string> variant_names();

// The training loop of a variant. A backward has the recipe's batch over all ranks.
class VariantStep {
 public:
  // `spans`, if any, gets the spans of each step and must outlive this object. A collective.
  VariantStep(Variant variant, const ProcessGroup& group, Spans* spans = nullptr);

  const Variant& variant() const { return variant_; }

  // One step of the optimizer. A collective, unless nothing is averaged.
  void run();

  // The gradients of each all-reduce of a step in bytes, before a CommHook, in their order.
  std::vector<std::int64_t> message_bytes();

 private:
  void backward();
  void average_by_hand();

  Variant variant_;
  ProcessGroup group_;
  Spans* spans_;
  std::unique_ptr<TrainingStep> step_;
};

}  // namespace ladder::bench
