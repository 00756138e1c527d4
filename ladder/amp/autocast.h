// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>
#include <optional>

#include "ladder/nn/model.h"

namespace ladder {

// Mixed precision: while one of these lives, large operations on `device` (convolutions, matrix
// products) compute in `dtype`, 16 bits, and sensitive ones (losses; on a GPU also softmax and most
// sums) in float32. LibTorch keeps a list of both and converts the inputs; all others take what
// they are given.
//
//     torch::Tensor scores;
//     {
//       const Autocast autocast(torch::kCPU, torch::kBFloat16);
//       scores = model.forward(inputs);
//     }
//     loss(scores).backward();  // outside: backward takes the dtypes that forward took
//
// The weights stay float32. A weight is converted once and kept until the outermost guard of
// the thread ends, which is why a guard lives for one forward and not for an epoch:
// optimizer.step() would change the weight and not what is kept of it.
//
// A dtype of float32 makes it inactive: nothing is converted. Inside another guard it switches
// autocast off until it ends, and then the outer one goes on, as in Python.
//
// Of this thread alone: a thread that a model starts needs a guard of its own, so put it into
// the model's forward; see AutocastModel.
//
// Python's counterpart: torch.autocast(device_type, dtype, enabled, cache_enabled).
class Autocast {
 public:
  // dtype: float32, bfloat16 or float16; else UsageError. cache_enabled: keep converted weights;
  // unset = as it is, which is on. Switch it off while a CUDA graph is captured.
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

// A Model whose forward runs under autocast, and so does everything that calls it: training,
// evaluation, and the replicas of DataParallel in their own threads. Put it around the network
// and below DistributedDataParallel.
//
// The output comes in float32, whatever the network computed in, so that the loss is exact.
//
// Python's counterpart: `with autocast():` as the first line of forward.
class AutocastModel : public Model {
 public:
  // dtype: as for Autocast; float32 = as without the wrapper, to the last bit.
  AutocastModel(std::shared_ptr<Model> module, torch::ScalarType dtype);

  torch::Tensor forward(const Inputs& inputs) override;
  std::shared_ptr<Model> new_like() const override;

 private:
  std::shared_ptr<Model> module_;
  torch::ScalarType dtype_;
};

}  // namespace ladder
