// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ladder/comm/process_group.h"
#include "ladder/nn/model.h"
#include "ladder/parallel/fully_sharded_options.h"
#include "ladder/parallel/replicated_model.h"

namespace ladder {

// A Model around one that is divided over the ranks: each rank keeps 1 / world_size of the
// parameters, of their gradients and of the optimizer's state. For a network that does not fit on
// one device, or to train a larger one.
//
// The network consists of units, such as its layers. The parameters of a unit lie in one flat
// tensor, of which each rank has a shard. A unit is made whole (unsharded) by an all-gather just
// before its forward, and divided again (resharded) after it; the same in backward, after which a
// reduce-scatter leaves each rank the average of its shard of the gradients. So besides its shards
// a rank has one or two whole units at a time.
//
//     struct Stack : ladder::Model {           // its layers are Models: each is a unit
//       torch::Tensor forward(const Inputs& inputs) override {
//         auto x = inputs.only();
//         for (const auto& layer : layers_) x = (*layer)(x);  // not layer->forward(x)
//         return x;
//       }
//     };
//     auto model = std::make_shared<FullyShardedDataParallel>(network, group);
//     AdamW optimizer(model->parameters());
//     criterion(model->forward(batch.inputs), batch).backward();
//     optimizer.step();
//
// Between two steps a parameter is the part of it in this rank's shard, a vector, perhaps of no
// element, and its gradient is the same part; its TensorImpl stays, so an optimizer, of any
// library, steps the parts, and has a state for them alone. clip_grad_norm_ and GradScaler see all
// ranks: call them on every rank. Outside of its unit's call a parameter has no other form: compute
// nothing with it there.
//
// With the optimizers of this library the weights are those of DistributedDataParallel, bit for
// bit, where the backend adds in the same order: in shared memory, and with two ranks over Gloo.
//
// Checkpoints (checkpoint_parts.h) have a file per rank with its shards, and any number of ranks
// resumes from them. For a file of the plain network, all ranks call unshard(), and one saves.
//
// Collectives: construction, which sends rank 0's parameters and buffers to all, forward, backward,
// unshard() and eval(). A backward throws UsageError for a unit of which some trained parameters
// have a gradient and some have none.
//
// Source: Zhao et al., "PyTorch FSDP", VLDB 2023; Rajbhandari et al., "ZeRO", SC 2020. Python's
// counterpart: torch.distributed.fsdp.fully_shard, which divides each parameter by rows.
class FullyShardedDataParallel : public ReplicatedModel {
 public:
  // Throws UsageError for parameters of several devices or of another dtype than float32, for one
  // that two units share or another wrapper has, and for a name in `units` that is no Model. A
  // group of one rank divides nothing.
  FullyShardedDataParallel(std::shared_ptr<Model> module, ProcessGroup group,
                           FullyShardedOptions options = {});

  torch::Tensor forward(const Inputs& inputs) override;

  // eval() makes all units whole and sends rank 0's buffers to all, so that ranks may evaluate
  // different numbers of batches, and train() divides them.
  void train(bool on = true) override;

  // For gradient accumulation: while the result lives, units stay whole after their backward, with
  // this rank's sum of gradients. The next backward outside averages it.
  [[nodiscard]] GradientReducer::NoSync no_sync(bool when = true) override;

  void forget() override { reshard_all(); }

  // Makes all units whole until reshard(), as for save_model. A load in between throws UsageError,
  // and so does a step of this library's optimizers.
  void unshard();
  void reshard();

  // The largest number of bytes of whole units, and of gradients on their way to the ranks, that
  // this rank had at once; without unshard() and eval().
  std::int64_t most_whole_bytes() const;

  struct UnitSizes {
    std::string name;    // that of its module; "" = the outermost
    std::int64_t shard;  // elements of this rank, with padding
    std::int64_t whole;  // of all ranks
  };
  std::vector<UnitSizes> units() const;

 private:
  class Unit;
  struct Run;

  torch::Tensor call(const Inputs& inputs);
  void reshard_all();
  void mark_whole();

  std::shared_ptr<Run> run_;
  std::vector<std::shared_ptr<Unit>> units_;  // the outermost first; none on a group of one rank
  std::shared_ptr<Unit> outermost_;           // null: all parameters are in inner units
  std::vector<std::shared_ptr<void>> marks_;  // one per parameter
};

}  // namespace ladder
