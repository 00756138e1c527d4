// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace ladder {

// See exact_data_parallel.h; without LibTorch's headers, for option structs.
struct ExactDataParallelOptions {
  std::int64_t micro_batch = 16;  // samples; part of the recipe, as the batch size is
  int threads = 0;  // that compute micro-batches; at most those of LibTorch; 0 = all of them
  std::int64_t check_replicas = 0;     // compare the parameters every N-th forward; 0 = never
  std::function<double()> loss_scale;  // of the loss when backward runs; unset = 1

  // With the scale of a GradScaler, which must outlive the model.
  template <typename GradScaler>
  ExactDataParallelOptions scaled_by(const GradScaler& scaler) const {
    auto options = *this;
    if (scaler.is_enabled()) options.loss_scale = [&scaler] { return scaler.get_scale(); };
    return options;
  }
};

}  // namespace ladder
