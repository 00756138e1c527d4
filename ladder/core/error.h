// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ladder {

// The reason a program stopped, as its exit status.
// A program ended by signal n exits with 128 + n, as shells expect.
enum class ExitCode : int {
  kOk = 0,
  kRuntime = 1,      // the operating system refused, or a bug: a full disk, a missing permission
  kUsage = 2,        // the command line or a configuration is wrong
  kData = 3,         // a data set or checkpoint file is missing or damaged
  kDistributed = 4,  // a rank died, timed out, or disagrees with the others
  kNumeric = 5,      // the loss is NaN or infinite
};

// An error with a hint for the user.
//
// Every message is one line of four parts: where, what was expected, what was found instead,
// and a hint with something to type:
//
//     data/labels-idx1-ubyte: expected labels 0 to 9, got 12 at item 7; hint: ...
//
// An option is named as its field is spelled (`num_workers`), never as a command-line flag.
//
// The constructors below fix one form per kind of error. `call_and_report` turns the class into
// an exit code.
class Error : public std::runtime_error {
 public:
  ExitCode exit_code() const { return exit_code_; }

 protected:
  struct Parts {
    std::string where;     // an option, a file, an operation
    std::string expected;  // may be empty: then the message is "where: got"
    std::string got;
    std::string hint;  // may be empty
  };
  Error(ExitCode exit_code, const Parts& parts);

 private:
  ExitCode exit_code_;
};

// An invalid argument, option or environment variable: exit code 2.
class UsageError : public Error {
 public:
  // `where` is the name of the option or variable, `expected` the allowed range in words.
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
  // Something that must be set first: "where: expected X, not set".
  static UsageError missing(std::string_view where, std::string_view expected,
                            std::string_view hint);
  // A text of another form than expected, such as letters for a number.
  static UsageError malformed(std::string_view where, std::string_view expected,
                              std::string_view got, std::string_view hint = "");

 private:
  static UsageError whole_number_out_of_range(std::string_view where, const std::string& got,
                                              std::string_view expected, std::string_view hint);
  explicit UsageError(const Parts& parts) : Error(ExitCode::kUsage, parts) {}
};

// A missing or damaged file of a data set or checkpoint: exit code 3.
// `path` comes first in every message. Nothing read from such a file is used.
class DataError : public Error {
 public:
  static DataError missing_file(std::string_view path, std::string_view hint);
  // `expected` and `got` are values of one property, such as "magic number 0x00000803".
  static DataError mismatch(std::string_view path, std::string_view expected, std::string_view got,
                            std::string_view hint);

 private:
  explicit DataError(const Parts& parts) : Error(ExitCode::kData, parts) {}
};

// Ranks that disagree, ended or timed out: exit code 4.
class DistributedError : public Error {
 public:
  // With an empty `expected`, the message is "where: got".
  static DistributedError of(std::string_view where, std::string_view expected,
                             std::string_view got, std::string_view hint);
  // A collective or a store that lost another rank. `text` is one line of the backend's message.
  // `where` is the collective, with the current_step() if there is one.
  static DistributedError peer_lost(std::string_view text);
  // Ranks that were started as parts of different runs.
  static DistributedError ranks_disagree(std::string_view what, std::string_view expected,
                                         std::string_view got, std::string_view hint);

 private:
  explicit DistributedError(const Parts& parts) : Error(ExitCode::kDistributed, parts) {}
};

// A process that ended with an exit code other than 0. The program that started it ends with the
// same code, so a missing file gives exit code 3 for any number of ranks.
class ChildError : public Error {
 public:
  // With an empty `expected`, the message is "where: got".
  static ChildError of(int exit_code, std::string_view where, std::string_view expected,
                       std::string_view got, std::string_view hint);

 private:
  ChildError(ExitCode exit_code, const Parts& parts) : Error(exit_code, parts) {}
};

// A loss, a gradient or a weight that is NaN or infinite: exit code 5.
class NumericError : public Error {
 public:
  // With an empty `expected`, the message is "where: got".
  static NumericError of(std::string_view where, std::string_view expected, std::string_view got,
                         std::string_view hint);

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
