// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/sample_files.h"

namespace ladder {

// A reader of something that comes from elsewhere: a file, or the environment.
struct Parser {
  std::string name;                  // for --only, and of its folder of regression files
  std::vector<std::string> sources;  // whose lines the inputs must reach
  std::vector<Bytes> samples;        // valid ones, and broken ones that reach further lines
  // Returns, or throws an error with the exit code `refusal`. Anything else is a finding, and so
  // is what no longer holds of an input that it took: then it throws Broken.
  std::function<void(const Bytes&)> parse;
  ExitCode refusal = ExitCode::kData;
  std::vector<Bytes> large = {};                 // too long to be damaged: fed as they are
  std::vector<std::string> words = {};           // to write into texts
  std::function<void(Bytes&)> repair = nullptr;  // sets a length right, in half of the inputs
};

class Broken : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void require(bool holds, const char* what) {
  if (!holds) throw Broken(what);
}

std::vector<Parser> file_parsers();           // data sets, weights, and JSON of a checkpoint
std::vector<Parser> configuration_parsers();  // YAML and JSON that a person writes
std::vector<Parser> environment_parsers();    // what launchers set

inline std::vector<Bytes> samples_of(std::initializer_list<std::string_view> texts) {
  std::vector<Bytes> samples;
  for (const auto text : texts) samples.push_back(bytes_of(text));
  return samples;
}

inline std::string text_from(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace ladder
