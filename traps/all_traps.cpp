// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "traps/trap.h"

namespace ladder::traps {

void raw_model_forward();
void no_sampler();
void accuracy_divided();
void padded_evaluation();
void test_on_rank_0();
void no_set_epoch();
void batch_64_by_7();
void scheduler_too_fast();
void scheduler_on_rank_0();
void plain_backward();
void per_device_batch();
void same_noise();
void module_prefix();
void sync_bn_after_wrap();
void unscale_twice();
void fork_after_threads();
void mean_of_means();
void nproc_per_nodes();
void two_are_not_one();

std::span<const Trap> all_traps() {
  static constexpr std::array kTraps = {
      Trap{"raw-model-forward", "000-23", "the loop calls the network, not the wrapper",
           raw_model_forward},
      Trap{"no-sampler", "000-25", "every rank reads the whole training set", no_sampler},
      Trap{"accuracy-divided", "000-36", "the right answers of one rank ÷ the whole test set",
           accuracy_divided},
      Trap{"padded-evaluation", "001-29, 004-23", "the test set is divided by a training sampler",
           padded_evaluation},
      Trap{"test-on-rank-0", "001-32", "the test, with a collective in it, inside if (rank == 0)",
           test_on_rank_0},
      Trap{"no-set-epoch", "001-28", "set_epoch is never called", no_set_epoch},
      Trap{"batch-64-by-7", "004-09", "a batch of 64 on 7 ranks as int(64 / 7)", batch_64_by_7},
      Trap{"scheduler-too-fast", "004-24", "a schedule of epochs, prepared, and stepped once each",
           scheduler_too_fast},
      Trap{"scheduler-on-rank-0", "004-10", "scheduler.step() on rank 0 alone",
           scheduler_on_rank_0},
      Trap{"plain-backward", "000-34", "loss.backward() after prepare", plain_backward},
      Trap{"per-device-batch", "001-44", "more ranks with the same batch size and learning rate",
           per_device_batch},
      Trap{"same-noise", "001-27", "the augmentation of all ranks is seeded alike", same_noise},
      Trap{"module-prefix", "001-33", "the weights of the wrapper are saved", module_prefix},
      Trap{"sync-bn-after-wrap", "001-22", "BatchNorm is converted after the model was wrapped",
           sync_bn_after_wrap},
      Trap{"unscale-twice", "001-23", "unscale_ to look at the gradients, and again to clip them",
           unscale_twice},
      Trap{"fork-after-threads", "000-42, 001-16",
           "a tensor is used, and then processes are forked", fork_after_threads},
      Trap{"mean-of-means", "-", "means of batches of different sizes are averaged", mean_of_means},
      Trap{"nproc-per-nodes", "000-26", "torchrun --nproc_per_nodes=2", nproc_per_nodes},
      Trap{"two-are-not-one", "-", "two ranks are expected to end with the weights of one",
           two_are_not_one}};
  return kTraps;
}

}  // namespace ladder::traps
