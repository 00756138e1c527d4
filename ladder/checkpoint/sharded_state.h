// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "ladder/nn/state_dict.h"

namespace ladder {

// Whether FullyShardedDataParallel has divided parameters of `module`.
bool is_sharded(const torch::nn::Module& module);

// What this rank loads of a state whose tensors are named by the parameters of a divided `module`:
// a parameter's own name, or "<name>.exp_avg" and so on, of an optimizer. `saved`: the tensors of
// each rank of any number in rank order, each with its shards, or one dictionary with those of this
// rank or with whole tensors. Tensors of other names are those of the first.
//
// Throws UsageError while the module is whole (unshard(), eval()), DataError naming `origin` for
// shards that have other elements than the parameter.
StateDict own_shards(const torch::nn::Module& module, const std::vector<StateDict>& saved,
                     const std::string& origin);

}  // namespace ladder
