// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ladder/data/batch.h"

namespace ladder {

class DeviceGraph;
class FusedOptimizer;

struct StepGraphOptions {
  std::int64_t warmup_steps = 3;  // without a graph, before the capture; >= 1
};

// A training step as one launch of a CUDA graph. On a GPU, a step of a small network has some sixty
// kernels of a few microseconds, and the host needs longer to launch them than they run.
//
//     StepGraph graph(device, optimizer);
//     const auto step = [&](const Batch& batch) {
//       optimizer.zero_grad();
//       const RandomScope random({seed, batch.epoch, batch.positions});
//       auto loss = criterion(model.forward(batch.inputs), batch);
//       loss.backward();
//       optimizer.step();
//       return loss;
//     };
//     for (const Batch& batch : loader) monitor.step(batch, graph.run(batch, step));
//
// The first `warmup_steps` batches of one form run as they are. The next one is captured: its host
// code runs once more, and its kernels are recorded. From then on run() copies the batch into the
// memory of the recorded one and replays the kernels; the host code of the step no longer runs. A
// batch of another form, such as a short last one, runs without the graph. After
// FusedOptimizer::plan_load, and when a parameter has moved, the step is captured again, after a
// warm-up.
//
// So a captured step must do the same work each time. It begins with zero_grad(), or the loop calls
// zero_grad() before each run(). The host reads no value of the GPU in it (item(), cpu(), a print),
// and changes no number: a scheduler steps outside. Of the host's numbers only the learning rate
// may differ later, not the weight decay, the betas or the network's mode. Dropout by position
// reads epoch and positions from the GPU. Gradients are those of the last step, also after a
// replay. On the CPU run() calls the step.
//
// Python's counterpart: torch.cuda.graph, around the whole step.
class StepGraph {
 public:
  // Forward, backward and the optimizer's step for a batch on the device; returns the loss. The
  // same at each call.
  using Step = std::function<torch::Tensor(const Batch& batch)>;

  // `optimizer`: Adam, AdamW or SGD of this library, not divided among ranks, for a network without
  // DistributedDataParallel; must outlive the graph. On a GPU, throws UsageError for another one
  // and for warmup_steps < 1.
  StepGraph(const torch::Device& device, torch::optim::Optimizer& optimizer,
            StepGraphOptions options = {});
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // One step. The batch may be on the CPU; from pinned memory it is copied without a wait. Returns
  // the loss, in memory of its own. Throws UsageError, in the step that is captured, for one that
  // reads on the host or changes the learning rate; and for a batch that several ranks share. After
  // an error in a capture end the process: CUDA may refuse other work of it.
  torch::Tensor run(const Batch& batch, const Step& step);

  // The steps that were replayed.
  std::int64_t replays() const { return replays_; }

 private:
  struct Captured;

  bool is_current() const;
  torch::Tensor run_without_graph(const Batch& batch, const Step& step);
  void capture(const Batch& batch, const Step& step);
  torch::Tensor replay(const Batch& batch);

  torch::Device device_;
  FusedOptimizer* optimizer_ = nullptr;  // on the CPU: not needed
  StepGraphOptions options_;
  std::optional<c10::Stream> stream_;  // of steps that are not replayed
  Batch last_;                         // of the warm-up
  std::int64_t warmed_up_ = 0;         // batches of its form in a row
  std::int64_t replays_ = 0;
  std::unique_ptr<Captured> captured_;
};

}  // namespace ladder
