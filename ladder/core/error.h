// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ladder {

// Exit codes of a program. A program that signal n ended exits with 128 + n, as shells expect.
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
// Each named constructor below fixes the form of one kind of error. With an empty `expected`, the
// message is "where: got". `call_and_report` turns the class into an exit code.
class Error : public std::runtime_error {
 public:
  ExitCode exit_code() const { return exit_code_; }

 protected:
  struct Parts {
    std::string_view where;     // an option, a file, an operation
    std::string_view expected;  // may be empty
    std::string_view got;
    std::string_view hint;  // may be empty
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
                                 std::string_view hint);
  static UsageError out_of_range(std::string_view where, std::integral auto got,
                                 std::string_view expected, std::string_view hint) {
    return UsageError({where, expected, std::to_string(got), hint});
  }
  // A name that is none of `choices`; the hint proposes the nearest one.
  static UsageError unknown_name(std::string_view where, std::string_view got,
                                 std::span<const std::string> choices);
  // Two settings that exclude each other.
  static UsageError conflict(std::string_view where, std::string_view got, std::string_view hint) {
    return UsageError({where, "", got, hint});
  }
  // A setting that is required: "where: expected X, not set".
  static UsageError missing(std::string_view where, std::string_view expected,
                            std::string_view hint);
  // A text of another form than expected, such as letters for a number.
  static UsageError malformed(std::string_view where, std::string_view expected,
                              std::string_view got, std::string_view hint);

 private:
  explicit UsageError(const Parts& parts) : Error(ExitCode::kUsage, parts) {}
};

// Throws UsageError, "where: expected LEAST to MOST, got VALUE", unless LEAST <= VALUE <= MOST.
void require_between(std::string_view where, std::int64_t value, std::int64_t least,
                     std::int64_t most, std::string_view hint);
// Throws UsageError, "where: expected a number >= LEAST, got VALUE", for a smaller value.
void require_at_least(std::string_view where, std::int64_t value, std::int64_t least,
                      std::string_view hint);

// A missing or damaged file of a data set or checkpoint: exit code 3. No byte of it is used.
class DataError : public Error {
 public:
  static DataError missing_file(std::string_view path, std::string_view hint) {
    return DataError({path, "a readable file", "none", hint});
  }
  // `expected` and `got` are values of one property, such as "magic number 0x00000803".
  static DataError mismatch(std::string_view path, std::string_view expected, std::string_view got,
                            std::string_view hint) {
    return DataError({path, expected, got, hint});
  }

 private:
  explicit DataError(const Parts& parts) : Error(ExitCode::kData, parts) {}
};

// Ranks that disagree, ended or timed out: exit code 4.
class DistributedError : public Error {
 public:
  static DistributedError of(std::string_view where, std::string_view expected,
                             std::string_view got, std::string_view hint) {
    return DistributedError({where, expected, got, hint});
  }
  // Ranks that were started as parts of different runs.
  static DistributedError ranks_disagree(std::string_view what, std::string_view expected,
                                         std::string_view got, std::string_view hint) {
    return of(what, expected, got, hint);
  }

 private:
  explicit DistributedError(const Parts& parts) : Error(ExitCode::kDistributed, parts) {}
};

// A child process that ended with an exit code other than 0. Its parent ends with the same code, so
// a missing file gives exit code 3 for any number of ranks.
class ChildError : public Error {
 public:
  static ChildError of(int exit_code, std::string_view where, std::string_view expected,
                       std::string_view got, std::string_view hint) {
    return {static_cast<ExitCode>(exit_code), {where, expected, got, hint}};
  }

 private:
  ChildError(ExitCode exit_code, const Parts& parts) : Error(exit_code, parts) {}
};

// A loss, a gradient or a weight that is NaN or infinite: exit code 5.
class NumericError : public Error {
 public:
  static NumericError of(std::string_view where, std::string_view expected, std::string_view got,
                         std::string_view hint) {
    return NumericError({where, expected, got, hint});
  }

 private:
  explicit NumericError(const Parts& parts) : Error(ExitCode::kNumeric, parts) {}
};

// The operating system refused: exit code 1.
class SystemError : public Error {
 public:
  // `operation` is the call that failed ("write", "rename"); `errno_value` becomes its text.
  // Without a hint, the errno chooses one: a full disk, a limit of the system (system_limits.h), a
  // missing permission, a wrong path, something in its place.
  static SystemError failed(std::string_view operation, std::string_view path, int errno_value,
                            std::string_view hint = "");

 private:
  explicit SystemError(const Parts& parts) : Error(ExitCode::kRuntime, parts) {}
};

// The member of `choices` nearest to `name`, or "" if none is close. The distance counts
// insertions, deletions, replacements and swaps of neighbours; '_' equals '-'. The name that
// another program has for the same thing is the nearest: --learning-rate for --lr.
std::string nearest_name(std::string_view name, std::span<const std::string> choices);

}  // namespace ladder
