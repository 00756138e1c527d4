// SPDX-License-Identifier: Apache-2.0
// Must not compile: nine mistakes in arguments. A test runs the compiler on it.
#include <torch/nn/modules/linear.h>

#include <memory>

#include "ladder/accelerate/accelerator.h"
#include "ladder/optim/adam.h"
#include "ladder/parallel/data_parallel.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/trainer/trainer.h"

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x; }
};

struct NoForward : torch::nn::Module {};

void mistakes(ladder::Accelerator& accelerator, const ladder::ProcessGroup& group) {
  auto adamw = std::make_unique<ladder::AdamW>(std::vector<torch::Tensor>());
#if MISTAKE == 1 || MISTAKE == 0
  accelerator.prepare(adamw);  // without std::move
#endif
#if MISTAKE == 2 || MISTAKE == 0
  Net net;
  accelerator.prepare(net);  // by value
#endif
#if MISTAKE == 3 || MISTAKE == 0
  accelerator.prepare(0.01);  // the learning rate
#endif
#if MISTAKE == 4 || MISTAKE == 0
  const auto raw = std::make_unique<Net>();
  accelerator.prepare(raw.get());  // a pointer of the caller's
#endif
#if MISTAKE == 5 || MISTAKE == 0
  ladder::DistributedDataParallel ddp(Net(), group);  // by value
#endif
#if MISTAKE == 6 || MISTAKE == 0
  const torch::nn::Linear linear(2, 2);
  ladder::DataParallel data_parallel(linear, {});  // a holder
#endif
#if MISTAKE == 7 || MISTAKE == 0
  const auto pointer = std::make_shared<Net>();
  accelerator.accumulate(pointer);  // without *
#endif
#if MISTAKE == 8 || MISTAKE == 0
  ladder::DistributedDataParallel without(std::make_shared<NoForward>(), group);
#endif
#if MISTAKE == 9 || MISTAKE == 0
  ladder::LossFunction loss = [](const torch::Tensor& outputs) { return outputs; };
#endif
}
