// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <any>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "exercises/exercise.h"
#include "ladder/comm/process_group.h"

namespace ladder::exercises {

// Why a property does not hold: what a learner reads.
struct Wrong {
  std::string expected;
  std::string got;
  std::string usually;  // what such a result usually means
};

// Throws Wrong unless `holds`.
void expect(bool holds, const std::string& expected, const std::string& got,
            const std::string& usually);

// In a check: what the learner's code is called with from now on, such as "7 samples on 3 ranks".
// Messages about an exception, a crash or a wait begin with it. `if_killed`: what a crash usually
// means here. An empty `where` follows the call, so that the ranks that returned are known.
void running(const std::string& where, const std::string& if_killed = "");

// In a check: what the learner's code computed, or exact words for it. Each property has some. The
// submission shares its address space with the grader and may end or forge any part of it, so the
// caller of this program compares these results with those of the solution; see results().
void result(const torch::Tensor& tensor);
void result(std::string_view exact);

// A part of the inputs, which the caller draws for each check, so that nothing can know the results
// before. 0 in tests.
std::uint64_t fresh_seed();

// Runs the properties of one exercise on one submission and prints a line for each.
//
// Every property runs in processes of its own, started by spawn, because the code may crash, hang,
// or end the process. The process of the Grader uses no tensor.
class Grader {
 public:
  // `report`: where the lines go. Not owned, and not the standard output, to which the code of the
  // learner may write.
  // `measures`: whether compare_times does anything.
  explicit Grader(std::FILE* report, bool measures = true) : report_(report), measures_(measures) {}

  // Prints the results of each property: a sum with weights from the seed, and the magnitude.
  void results() const;

  // Runs `check` on `world_size` ranks. It throws Wrong, by expect(), if the property does not
  // hold. Prints the result; throws Failed for the first property that does not hold. `seconds`:
  // the deadline.
  void property(const std::string& title, int world_size,
                const std::function<void(const ProcessGroup&)>& check, unsigned seconds = 10);

  // The same on processes that have a launcher's environment, no group, and no thread yet.
  void property_without_group(const std::string& title, int world_size,
                              const std::function<void()>& check, unsigned seconds = 10);

  // Prints the seconds of the learner's code and of the library's, which rank 0 measures. Fails as
  // a property does if one of them throws; a timeout, as on a busy machine, is printed.
  void compare_times(int world_size, const std::string& what,
                     const std::function<void(const ProcessGroup&)>& yours,
                     const std::function<void(const ProcessGroup&)>& library);

 private:
  struct Outcome {
    std::string reason = {};  // "" if all ranks finished
    bool late = false;        // it is a timeout
    std::string results = {};
  };

  Outcome run(int world_size, const std::function<void()>& check, unsigned seconds);
  [[noreturn]] void fail(const std::string& title, const std::string& reason);

  std::FILE* report_;
  bool measures_;
  std::string results_;
};

// A property does not hold, and its line is printed; or nothing is written yet.
class Failed {};

using Grade = std::function<void(Grader&, const std::any& task)>;
void register_grader(const std::string& exercise, const std::type_info& task, Grade grade);

// Registers the grader of an exercise, when the program starts.
template <typename Task>
class Graded {
 public:
  Graded(const std::string& exercise, void (*grade)(Grader&, const Task&)) {
    register_grader(exercise, typeid(Task), [grade](Grader& grader, const std::any& task) {
      grade(grader, std::any_cast<const Task&>(task));
    });
  }
};

// Grades what `author` handed in for `exercise`. Returns the exit code: 0 if each property holds,
// else 1. The author "results" is the solution, of which no times are measured. Throws UsageError
// for an unknown exercise or author.
int grade(const std::string& exercise, const std::string& author, std::FILE* report);

// Loads a shared library with submissions. Returns "" or the error.
std::string load_submissions(const std::string& author, const std::string& library);

}  // namespace ladder::exercises
