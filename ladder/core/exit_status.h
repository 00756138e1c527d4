// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <functional>

namespace ladder {

// How a program ends: with one line that says why, and an exit code that says of which kind.
//
// Calls `fn`. Returns 0 if it comes back, else prints what it threw as one line and returns the
// code (see ExitCode):
//
//     error: data/images.gz: expected a readable file, got none; hint: ...     3
//     [rank 1] error: epoch 2, step 57: expected a finite loss, got inf; ...    5
//
// An StoppedBySignal is not an error: its text is printed as it is, and the code is 128 + its
// signal.
//
// The rank is told when a launcher set one (RANK, or the names of mpirun and srun) of several. The
// line is one write, so that lines of ranks that share a terminal do not mix.
//
// When one rank dies, the others fail next: their collective or their store loses its peer. Such
// errors come from Gloo, NCCL or c10d; they are told by their text and by the name of their type,
// and end with ExitCode::kDistributed. A launcher then knows the cause from its consequences.
//
// Under torchrun the error is also written to the file that TORCHELASTIC_ERROR_FILE names, which
// torchrun shows in its report. Of several ranks torchrun calls the earliest the root cause, and
// its times are whole seconds: the time of an error is rounded down, that of a consequence up. A
// file that cannot be written is left out without a word, as the line is printed already.
//
// Never throws. Python's counterpart of the file:
// torch.distributed.elastic.multiprocessing.errors.record.
int call_and_report(const std::function<void()>& fn, std::FILE* stream = stderr);

}  // namespace ladder
