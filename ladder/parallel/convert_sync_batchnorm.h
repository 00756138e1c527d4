// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include "ladder/comm/process_group.h"
#include "ladder/nn/sync_batch_norm.h"

namespace ladder {

// Makes every BatchNorm in `module`, of this library, of torch::nn and in a network of Python
// (ExportedModule), use the mean and variance of all ranks' batches while training (see
// nn/sync_batch_norm.h). Without it each rank normalises by its own slice, and N ranks train
// another network than one rank. In a group of one nothing changes, to the last bit. From then on a
// training forward is a collective: for one on a single rank, such as a sample for the log, call
// eval() first.
//
//     convert_sync_batchnorm(*network, group);
//     auto model = std::make_shared<DistributedDataParallel>(network, group);
//
// Layers are converted in place, also members and parts of a Sequential. One of torch::nn gets a
// submodule "process_group" without tensors, and cannot be cloned afterwards; it still refuses a
// single value per channel in the part of a rank. A layer of torch::nn without weight and without
// running statistics stays local, and one of Python without running statistics. A second call
// replaces the group.
//
// Returns the number of layers. Throws UsageError, and changes nothing, for a wrapped model. Copies
// made by new_like() are local again, and so are the replicas of DataParallel.
// Python's torch.nn.SyncBatchNorm.convert_sync_batchnorm returns a new module instead.
int convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup& group);

// The sum over the ranks of `group`: gathers and adds in rank order, so the bits are equal on all
// ranks. Over Gloo that is faster than an all-reduce.
SumOverRanks sum_over_ranks_of(const ProcessGroup& group);

}  // namespace ladder
