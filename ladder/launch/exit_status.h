// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <functional>

namespace ladder {

// The end of a program: one line with the reason, and an exit code of its kind.
//
// Calls `fn`, then require_lines_printed(). Returns 0 if both return, else prints what was thrown
// as one line and returns the code (see ExitCode):
//
//     error: data/images.gz: expected a readable file, got none; hint: ...     3
//     [rank 1] error: epoch 2, step 57: expected a finite loss, got inf; ...    5
//
// A reader that pauses for longer than three seconds misses the line.
//
// From the call on, a write to a pipe without a reader or beyond the limit of file sizes is an
// error of that write, and no end by a signal: SIGPIPE and SIGXFSZ are ignored, unless the program
// has handlers for them.
//
// A StoppedBySignal is not an error: its text is printed unchanged, and the code is 128 + signal.
//
// The line names the rank if a launcher set one of several (RANK, or the variables of mpirun and
// srun). It is one write, so lines of ranks that share a terminal do not mix, and it is kept in
// rank_status().
//
// When a rank dies, errors of Gloo, NCCL and c10d in the others (see failure_kind.h) end with
// ExitCode::kDistributed, so a launcher can distinguish the cause from its consequences.
//
// Under torchrun the error is also written to the file TORCHELASTIC_ERROR_FILE, which torchrun's
// report shows. Failures to write the file are ignored.
//
// Never throws. Python's counterpart of the file:
// torch.distributed.elastic.multiprocessing.errors.record.
int call_and_report(const std::function<void()>& fn, std::FILE* stream = stderr);

}  // namespace ladder
