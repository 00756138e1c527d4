// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include "ladder/comm/process_group.h"

namespace ladder {

// Makes every BatchNorm in `module` use the mean and variance of all ranks' batches while training
// (see nn/sync_batch_norm.h). Without it each rank normalises by its own slice, and N ranks train
// another network than one does. Evaluation needs no other rank. In a group of one nothing changes,
// to the last bit.
//
//     convert_sync_batchnorm(*network, group);
//     auto model = std::make_shared<DistributedDataParallel>(network, group);
//
// Call it on the network, before it is wrapped. Handed a wrapped model it throws UsageError, as for
// a BatchNorm of torch::nn, whose forward cannot be replaced (use ladder::BatchNorm); then nothing
// is changed. Returns how many it converted. A copy made by new_like() is local again, and so are
// the replicas of DataParallel.
//
// In Python torch.nn.SyncBatchNorm.convert_sync_batchnorm returns a new module; here the modules
// stay the same, and so do the names of their tensors.
int convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup& group);

}  // namespace ladder
