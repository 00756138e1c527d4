// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "traps/trap.h"

namespace ladder::traps {

void no_set_epoch();
void mean_of_means();
void module_prefix();
void raw_model_forward();
void no_sampler();
void batch_64_by_7();
void per_device_batch();
void same_noise();
void scheduler_on_rank_0();
void accuracy_divided();
void padded_evaluation();
void test_on_rank_0();
void divide_before_wait();
void fork_after_threads();
void two_are_not_one();
void nproc_per_nodes();
void sync_bn_after_wrap();
void unscale_twice();
void plain_backward();
void scheduler_too_fast();
void layer_forward();
void tied_across_units();
void optimizer_before_shards();

std::span<const Trap> all_traps() {
  static constexpr std::array kTraps = {
      Trap{"no-set-epoch", 0, "the loop never calls set_epoch", no_set_epoch},
      Trap{"mean-of-means", 0, "the loop averages the means of batches that differ in size",
           mean_of_means},
      Trap{"module-prefix", 1, "the program saves the state dictionary of the wrapper",
           module_prefix, "the names in a file differ, and no step"},
      Trap{"raw-model-forward", 2, "the loop calls the network instead of the wrapper",
           raw_model_forward},
      Trap{"no-sampler", 2, "every rank reads the whole training set", no_sampler},
      Trap{"batch-64-by-7", 2, "seven ranks divide a batch of 64 as int(64 / 7)", batch_64_by_7},
      Trap{"per-device-batch", 2, "N ranks use the batch size and the learning rate of one",
           per_device_batch},
      Trap{"same-noise", 2, "every rank uses the same seed for its augmentation", same_noise},
      Trap{"scheduler-on-rank-0", 2, "only rank 0 calls scheduler.step()", scheduler_on_rank_0},
      Trap{"accuracy-divided", 2,
           "a rank divides its correct count by the size of the whole test set", accuracy_divided,
           "the evaluation is wrong, and no step"},
      Trap{"padded-evaluation", 2, "a DistributedSampler divides the test set", padded_evaluation,
           "the evaluation is wrong, and no step"},
      Trap{"test-on-rank-0", 2, "only rank 0 evaluates, and the evaluation has a collective",
           test_on_rank_0, "rank 0 waits after the last step"},
      Trap{"divide-before-wait", 2, "the loop divides a gradient before its sum has arrived",
           divide_before_wait},
      Trap{"fork-after-threads", 2, "the program forks after a tensor operation",
           fork_after_threads, "the processes do not start"},
      Trap{"two-are-not-one", 2, "a test expects two ranks to end with the weights of one",
           two_are_not_one},
      Trap{"nproc-per-nodes", 3, "torchrun gets --nproc_per_nodes=2", nproc_per_nodes,
           "the processes do not start"},
      Trap{"sync-bn-after-wrap", 4, "the program wraps the model before it converts BatchNorm",
           sync_bn_after_wrap},
      Trap{"unscale-twice", 4, "the loop calls unscale_ twice per step, for a log and for clipping",
           unscale_twice},
      Trap{"plain-backward", 5, "the loop calls loss.backward() after prepare", plain_backward},
      Trap{"scheduler-too-fast", 5, "the loop steps a prepared scheduler once per epoch",
           scheduler_too_fast},
      Trap{"layer-forward", 9, "the network calls layer->forward(x) instead of (*layer)(x)",
           layer_forward, "the first forward fails"},
      Trap{"tied-across-units", 9, "two units share a parameter", tied_across_units},
      Trap{"optimizer-before-shards", 9,
           "the program makes the optimizer before it divides the model", optimizer_before_shards}};
  return kTraps;
}

}  // namespace ladder::traps
