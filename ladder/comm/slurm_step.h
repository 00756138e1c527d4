// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "ladder/comm/launch_variables.h"

namespace ladder {

// Processes that SLURM's srun started.
//
// A job is a set of machines for some time; a step is one srun inside it, with tasks numbered
// from 0. Variables of the job (SLURM_NTASKS, SLURM_NODELIST) are there in batch scripts and
// shells too. Those of the step say that srun started this very process, or one above it.

// This process as a task of a step, or nothing if srun did not start it. Throws UsageError if
// variables of the step are missing or malformed.
std::optional<Place> read_srun(const Variables& variables);

// The first machine of the step, where rank 0 is: of "host[5-9,12]" it is host5. Throws
// UsageError, with a command for `program`, if there is no such list.
Sourced<std::string> slurm_host(const Variables& variables, const std::string& program);

// A port that two jobs on one machine rarely share: 15000 and the last four digits of the job's
// number. All ranks know it without talking to each other. Counterpart: Lightning's default.
Sourced<int> slurm_port(const Variables& variables, const std::string& program);

}  // namespace ladder
