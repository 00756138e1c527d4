// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ladder/comm/process_group.h"
#include "ladder/data/batch.h"
#include "ladder/nn/model.h"
#include "ladder/parallel/pipeline_options.h"

namespace ladder {

// One stage of a network that is cut over the ranks: rank 0 has its first layers, the last rank its
// last ones. For a network that does not fit on one device.
//
// A batch passes the stages in micro-batches, so that they work at the same time. With N stages of
// equal time and M micro-batches, a rank waits for (N - 1) / (M + N - 1) of a step:
// docs/stages/8-pipeline.md.
//
//     PipelineStage stage(own_layers, group, {.micro_batches = 8});
//     for (const Batch& batch : loader) {  // the whole batch, on every rank
//       const auto loss = stage.step(batch, [&](const torch::Tensor& output, const Batch& part) {
//         return part.num_items().mean(loss_sum(output, part.targets));
//       });
//       optimizer.step();
//       optimizer.zero_grad();
//     }
//
// clip_grad_norm_ and GradScaler see all stages: call them on every rank.
//
// The weights are the same bits as on one rank, which accumulates the gradients of the same
// micro-batches, in both schedules and for any cut. BatchNorm normalises over a micro-batch.
// Dropout needs masks by position (RandomScope); masks of PyTorch's generator depend on the cut.
//
// Source: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019, for 1F1B.
// Python's counterpart: torch.distributed.pipelining, ScheduleGPipe and Schedule1F1B.
class PipelineStage : public ModelWrapper {
 public:
  // The loss of a micro-batch, to differentiate: its part of the mean over the whole batch.
  using Loss = std::function<torch::Tensor(const torch::Tensor& output, const Batch& part)>;

  // `layers`: those of this rank; gets the previous stage's output, on rank 0 the inputs of the
  // batch. Throws UsageError for micro_batches < 1.
  PipelineStage(std::shared_ptr<Model> layers, ProcessGroup group, PipelineOptions options = {});

  // Forwards and backwards of all micro-batches: adds the gradients of `batch` to the parameters of
  // this rank, and returns the loss, without a graph, on every rank. `batch` is the same on
  // all ranks; rank 0 reads its inputs, the last one its targets. The loss is float32; float64 if
  // batch.micro_batch > 0. A collective. Throws DistributedError if ranks have batches of other
  // sizes, or with other indices or targets on the CPU.
  torch::Tensor step(const Batch& batch, const Loss& loss);

  // The output of the last stage, on every rank, without gradients. For evaluations: other ranks
  // than 0 need no `inputs`; those that have some have as many rows. A collective.
  torch::Tensor forward(const Inputs& inputs) override;

  // Gives `network`, the whole of it, the weights of all stages: those of equal names. On every
  // rank. A collective.
  void copy_weights_to(torch::nn::Module& network) const;

  // The largest number of micro-batches whose activations this rank held at once.
  std::size_t most_in_flight() const { return most_in_flight_; }

 private:
  // A micro-batch between its forward and its backward.
  struct InFlight {
    torch::Tensor input;
    torch::Tensor output;  // on the last rank the loss
  };

  // What ranks compare: samples, micro_batches, hashes of indices and of targets; 0 = unknown here.
  using Identity = std::array<std::int64_t, 4>;

  bool is_first() const { return group_.rank() == 0; }
  bool is_last() const { return group_.rank() == group_.world_size() - 1; }
  InFlight run_forward(const Batch& part, const Loss& loss);
  void run_backward(InFlight micro_batch);
  void send(const torch::Tensor& tensor, int dst);
  torch::Tensor receive(int src);
  void require_same_batch(const std::int64_t* sent, int src);
  void finish_sends();

  ProcessGroup group_;
  PipelineOptions options_;
  std::vector<Work> sends_;
  Identity batch_{};  // of the present call
  std::size_t most_in_flight_ = 0;
};

}  // namespace ladder
