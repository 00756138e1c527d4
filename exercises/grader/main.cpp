// SPDX-License-Identifier: Apache-2.0
// Grades one submission to an exercise; ./run exercise N --check starts it.
//
//   build/bin/exercises sampler solution              of this program
//   build/bin/exercises sampler yours LIBRARY.so      of a shared library
//   build/bin/exercises sampler results               the solution, without times
//
// The report goes to the standard output, whatever the graded code prints to the standard error.
// Its last line are the results, which exercise.py compares with those of the solution.
#include <fmt/core.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "exercises/grader/grader.h"
#include "ladder/core/error.h"
#include "ladder/launch/exit_status.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 2 || words.size() > 3) {
    fmt::print("usage: exercises NAME AUTHOR [LIBRARY]    grades one submission\n");
    return 2;
  }
  std::FILE* report = ::fdopen(::dup(STDOUT_FILENO), "w");
  ::setvbuf(report, nullptr, _IOLBF, BUFSIZ);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  int code = 0;
  const auto run = [&] {
    const auto error =
        words.size() == 3 ? ladder::exercises::load_submissions(words[1], words[2]) : "";
    if (!error.empty()) {
      throw ladder::UsageError::conflict("loading", error,
                                         "define each function that the file declares");
    }
    code = ladder::exercises::grade(words[0], words[1], report);
  };
  const int failed = ladder::call_and_report(run, report);
  return failed != 0 ? failed : code;
}
