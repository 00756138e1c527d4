// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <any>
#include <exception>

// What every exercise includes.
namespace ladder::exercises {

// Thrown by the functions of a skeleton.
class NotWrittenYet : public std::exception {
 public:
  const char* what() const noexcept override { return "not written yet"; }
};

// Hands `task`, the functions of one exercise, to the grader.
void hand_in(std::any task);

// Does so when the program or the library with this object is loaded: the last line of a file.
template <typename Task>
class Submission {
 public:
  explicit Submission(Task task) { hand_in(std::move(task)); }
};

// The author of what is handed in from now on: "solution", "skeleton", the name of a mistake.
// Generated sources have one before each file that they contain.
class Author {
 public:
  explicit Author(const char* name);
};

}  // namespace ladder::exercises
