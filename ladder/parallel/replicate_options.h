// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ladder {

// See replicate.h; without LibTorch's headers, for option structs. All sums but "fast" are in
// micro-batches: `micro_batch`, `threads` and `loss_scale` have no effect on "fast".
struct ReplicateOptions {
  std::string sums = "fast";      // of the gradients: a name of sum_names(); fast adds floats
  std::int64_t micro_batch = 16;  // samples; part of the recipe, as the batch size is
  int threads = 0;  // that compute micro-batches; at most those of LibTorch; 0 = all of them
  std::int64_t check_replicas = 0;     // compare the parameters every N-th forward; 0 = never
  std::function<double()> loss_scale;  // of the loss when backward runs; unset = 1

  bool in_micro_batches() const { return sums != "fast"; }
  // Of the batch sampler: DivideBatchesOptions::micro_batch.
  std::int64_t sampler_micro_batch() const { return in_micro_batches() ? micro_batch : 0; }

  // With the scale of a GradScaler, which must outlive the model.
  template <typename GradScaler>
  ReplicateOptions scaled_by(const GradScaler& scaler) const {
    auto options = *this;
    if (scaler.is_enabled()) options.loss_scale = [&scaler] { return scaler.get_scale(); };
    return options;
  }
};

// The sums of this program, for options and their help texts: fast, and those that add_sums added.

// Name and help text.
std::vector<std::pair<std::string, std::string>>& sum_names();

// The names, with | between them.
std::string sum_choices();

// "sums of gradients", and what the help texts add to it.
std::string sums_help();

}  // namespace ladder
