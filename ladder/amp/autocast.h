// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>
#include <optional>

#include "ladder/nn/model.h"

namespace ladder {

// Mixed precision: while the guard lives, large operations on `device` (convolutions, matrix
// products) compute in `dtype`, 16 bits, and sensitive ones (losses; on a GPU also softmax and most
// sums) in float32. LibTorch has a list of both and converts their inputs; other operations compute
// in the dtype of their inputs.
//
//     torch::Tensor scores;
//     {
//       const Autocast autocast(torch::kCPU, torch::kBFloat16);
//       scores = model.forward(inputs);
//     }
//     loss(scores).backward();  // outside: backward uses the dtypes of forward
//
// The weights stay float32. Converted weights are cached until the outermost guard of the thread
// ends, so a guard must not outlive the forward: optimizer.step() does not change the cached copy.
// A dtype of float32 switches autocast off. A guard applies to its thread alone; see AutocastModel.
//
// Python's counterpart: torch.autocast(device_type, dtype, enabled, cache_enabled).
class Autocast {
 public:
  // dtype: float32, bfloat16 or float16; else UsageError. cache_enabled: cache converted weights;
  // unset = unchanged, on by default; off with LibTorch before 2.11, whose cache can lose
  // gradients. Switch it off while a CUDA graph is captured.
  Autocast(const torch::Device& device, torch::ScalarType dtype,
           std::optional<bool> cache_enabled = std::nullopt);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType device_;
  bool enabled_before_;
  torch::ScalarType dtype_before_;
  bool cache_enabled_before_;
};

// A Model whose forward runs under autocast, in training, in evaluation and in the threads of
// DataParallel. Wrap the network in it before DistributedDataParallel. The output is float32, so
// that the loss is exact.
//
// Python's counterpart: `with autocast():` as the first line of forward.
class AutocastModel : public ModelWrapper {
 public:
  // dtype: as for Autocast; float32 switches autocast off.
  AutocastModel(std::shared_ptr<Model> module, torch::ScalarType dtype);

  torch::Tensor forward(const Inputs& inputs) override;
  std::shared_ptr<Model> new_like() const override;

 private:
  torch::ScalarType dtype_;
};

}  // namespace ladder
