// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ladder {

// What a program's exit status says about the reason it stopped.
// A program ended by signal n exits with 128 + n, as shells expect.
enum class ExitCode : int {
  kOk = 0,
  kRuntime = 1,      // the machine said no: a full disk, a missing permission, a bug
  kUsage = 2,        // the command line or a configuration is wrong
  kData = 3,         // a data set or checkpoint file is missing or damaged
  kDistributed = 4,  // a rank died, did not come, or disagrees with the others
  kNumeric = 5,      // the loss is NaN or infinite
};

// An error a person can act on.
//
// Every message is one line and has the same four parts: what or where, what was
// expected, what was found instead, and a hint with the next thing to type:
//
//     data/mnist/t10k-labels-idx1-ubyte: expected labels 0 to 9, got 12 at item 7; hint: ...
//
// Errors are made by the named constructors of the classes below, so that one kind
// of mistake has one wording everywhere. `main` turns the type into an exit code.
class Error : public std::runtime_error {
 public:
  ExitCode exit_code() const { return exit_code_; }

 protected:
  struct Parts {
    std::string where;     // a flag, a file, an operation
    std::string expected;  // may be empty: then the message is "where: got"
    std::string got;
    std::string hint;  // may be empty
  };
  Error(ExitCode exit_code, const Parts& parts);

 private:
  ExitCode exit_code_;
};

// The caller asked for something that cannot be: exit code 2.
class UsageError : public Error {
 public:
  // `where` is the flag or the option's name, `expected` the allowed range in words.
  static UsageError out_of_range(std::string_view where, double got, std::string_view expected,
                                 std::string_view hint = "");
  static UsageError out_of_range(std::string_view where, std::integral auto got,
                                 std::string_view expected, std::string_view hint = "") {
    return whole_number_out_of_range(where, std::to_string(got), expected, hint);
  }
  // A name that is none of `choices`; the hint proposes the nearest one.
  static UsageError unknown_name(std::string_view where, std::string_view got,
                                 std::span<const std::string> choices);
  // Two things that exclude each other.
  static UsageError conflict(std::string_view where, std::string_view got, std::string_view hint);
  // A thing that must be given first.
  static UsageError missing(std::string_view where, std::string_view expected,
                            std::string_view hint);
  // A text that is not of the form asked for, such as a number.
  static UsageError malformed(std::string_view where, std::string_view expected,
                              std::string_view got, std::string_view hint = "");

 private:
  static UsageError whole_number_out_of_range(std::string_view where, const std::string& got,
                                              std::string_view expected, std::string_view hint);
  explicit UsageError(const Parts& parts) : Error(ExitCode::kUsage, parts) {}
};

// A file of the data set or a checkpoint is missing, damaged or of another kind: exit code 3.
// `path` comes first in every message. Nothing read from such a file is used.
class DataError : public Error {
 public:
  static DataError missing_file(std::string_view path, std::string_view hint);
  // `expected` and `got` say the same property of the file, such as "magic number 0x00000803".
  static DataError mismatch(std::string_view path, std::string_view expected, std::string_view got,
                            std::string_view hint);

 private:
  explicit DataError(const Parts& parts) : Error(ExitCode::kData, parts) {}
};

// Ranks that disagree, or did not do their part: exit code 4.
class DistributedError : public Error {
 public:
  // An evaluation that did not count every image exactly once.
  static DistributedError images_counted(std::int64_t expected, std::int64_t got);
  // A collective or a store that lost another rank. `text` is what the backend said, one line.
  // Like collective_failed, it names the current_step(), if there is one.
  static DistributedError peer_lost(std::string_view text);
  // A port for the ranks to meet at that another program holds.
  static DistributedError port_in_use(int port);
  // A rank ("rank 1, step 58") that signal `signal` ended. `last_line` is what it wrote last; may
  // be empty.
  static DistributedError rank_killed(std::string_view rank, int signal,
                                      std::string_view last_line);
  // A collective that did not come to its end; `cause` is what LibTorch said, of which the first
  // line is kept. Without a hint, it is taken for another rank's failure.
  static DistributedError collective_failed(std::string_view operation, int rank, int world_size,
                                            std::string_view cause, std::string_view hint = "");
  // Ranks that did not come to a meeting in time.
  static DistributedError ranks_missing(std::span<const int> missing, int world_size,
                                        std::chrono::milliseconds timeout);
  // Parameters that got no gradient in a backward that was to average them.
  static DistributedError unused_parameters(std::span<const std::string> names);
  // No store answers at `address`, or it cannot be opened there.
  static DistributedError no_rendezvous(std::string_view address, std::string_view cause,
                                        std::string_view hint);
  // Averaged gradients that are NaN or infinite, although the loss of this rank is not. A rank
  // whose loss is not finite either stops with a NumericError in the same step. Both count from 1.
  static DistributedError gradient_of_another_rank(std::int64_t epoch, std::int64_t step);
  // Ranks that were started as parts of different runs.
  static DistributedError ranks_disagree(std::string_view what, std::string_view expected,
                                         std::string_view got, std::string_view hint);

 private:
  explicit DistributedError(const Parts& parts) : Error(ExitCode::kDistributed, parts) {}
};

// A rank that ended with an exit code other than 0. The program that started it ends with the same
// code, so that a missing file stays exit code 3 however many ranks there are.
class ChildError : public Error {
 public:
  // `rank` as for rank_killed. `last_line` is what it wrote last; may be empty, as may the hint.
  static ChildError exited(std::string_view rank, int exit_code, std::string_view last_line,
                           std::string_view hint = "");

 private:
  ChildError(ExitCode exit_code, const Parts& parts) : Error(exit_code, parts) {}
};

// A loss, or a weight, that is NaN or infinite: exit code 5. Epochs and steps count from 1.
class NumericError : public Error {
 public:
  // `circumstances`: what else is known, such as the samples of the batch; may be empty.
  static NumericError loss_not_finite(double loss, std::int64_t epoch, std::int64_t step,
                                      std::string_view circumstances = "");
  // Weights that would have been written to `path`.
  static NumericError weights_not_finite(std::string_view path, std::string_view tensor);

 private:
  explicit NumericError(const Parts& parts) : Error(ExitCode::kNumeric, parts) {}
};

// The operating system refused: exit code 1.
class SystemError : public Error {
 public:
  // `operation` is the call that failed ("write", "rename"); `errno_value` becomes its text.
  static SystemError failed(std::string_view operation, std::string_view path, int errno_value,
                            std::string_view hint = "");
  // A write that failed; a full disk gets its hint.
  static SystemError write_failed(std::string_view path, int errno_value);

 private:
  explicit SystemError(const Parts& parts) : Error(ExitCode::kRuntime, parts) {}
};

// The member of `choices` that `name` most likely meant, or "" if none is close.
// Counts insertions, deletions, replacements and swaps of neighbours; takes '_' for '-'.
std::string nearest_name(std::string_view name, std::span<const std::string> choices);

}  // namespace ladder
