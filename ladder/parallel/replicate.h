// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "ladder/comm/process_group.h"
#include "ladder/nn/model.h"
#include "ladder/parallel/replicate_options.h"
#include "ladder/parallel/replicated_model.h"

namespace ladder {

// The wrapper of a model of which every rank has a replica, by the name of its sums of gradients:
//
//     auto model = replicate(network, group, {.sums = options.sums});
//
//     fast    DistributedDataParallel: averages of floats. They depend on the number of ranks and
//             threads in their last bits
//     exact   ExactDataParallel, in a program that links ladder::exact or ladder::ladder: the same
//             bits for any number of both
//
// All names but fast add the gradients of whole micro-batches one by one. The batch sampler must
// divide by the same size: ReplicateOptions::sampler_micro_batch.
//
// A collective. Throws UsageError for a name that no row of the table has, and what the wrapper
// throws.
std::shared_ptr<ReplicatedModel> replicate(std::shared_ptr<Model> model, ProcessGroup group,
                                           const ReplicateOptions& how = {});

using MakeReplicated = std::shared_ptr<ReplicatedModel> (*)(std::shared_ptr<Model> model,
                                                            ProcessGroup group,
                                                            const ReplicateOptions& how);

// Adds a row. `help`: a noun phrase for help texts. Before main(), as add_backend (backends.h).
// Returns true.
bool add_sums(const std::string& name, const std::string& help, MakeReplicated make);

}  // namespace ladder
