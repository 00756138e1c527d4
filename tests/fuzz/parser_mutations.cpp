// SPDX-License-Identifier: Apache-2.0
//
// Feeds each parser of what comes from elsewhere: first its files in tests/fuzz/regressions/, then
// its samples, then damaged samples. Each input must be taken, or refused by the error that the
// parser promises; anything else, a report of the sanitizers included, is a finding. A parser
// that takes all inputs or none fails too: then the inputs are no good.
//
// A finding is written to the current folder. Once its cause is gone, its file belongs to
// tests/fuzz/regressions/PARSER/.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "ladder/core/clock.h"
#include "ladder/core/log.h"
#include "ladder/observe/progress_bar.h"
#include "tests/fuzz/finding.h"
#include "tests/fuzz/mutator.h"
#include "tests/fuzz/parsers.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::int64_t inputs = 20'000;
  std::uint64_t seed = 20'110'303;
  std::string only;
  std::string file;
  bool list = false;
};

Bytes content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

enum Outcome { kAccepted, kRefused, kFinding };

// `text` becomes that of the error, if there is one.
Outcome outcome_of(const Parser& parser, const Bytes& bytes, std::string& text) {
  try {
    parser.parse(bytes);
    return kAccepted;
  } catch (const std::exception& error) {
    text = error.what();
    const auto* refusal = dynamic_cast<const Error*>(&error);
    const bool promised = refusal != nullptr && refusal->exit_code() == parser.refusal;
    return promised ? kRefused : kFinding;
  }
}

// Parses inputs one after the other, and counts what becomes of them.
class Feeder {
 public:
  Feeder(const Parser& parser, std::uint64_t seed) : parser_(parser), seed_(seed) {}

  void feed(const Bytes& bytes) {
    std::string text;
    const Input input = {parser_.name.c_str(), seed_, ++number_, &bytes};
    const UnderWay under_way(input);
    const Outcome outcome = outcome_of(parser_, bytes, text);
    ++counts_[outcome];
    if (outcome != kFinding) return;
    write_finding(input, ("neither taken nor refused: " + text).c_str());
  }

  std::int64_t count(Outcome outcome) const { return counts_[outcome]; }

 private:
  const Parser& parser_;
  std::uint64_t seed_;
  std::int64_t number_ = 0;
  std::array<std::int64_t, 3> counts_{};
};

// In the order of their names.
std::vector<fs::path> regression_files(const Parser& parser) {
  const fs::path folder = fs::path(LADDER_SOURCE_DIR) / "tests/fuzz/regressions" / parser.name;
  std::vector<fs::path> files;
  if (!fs::exists(folder)) return files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

void feed_mutations(const Parser& parser, const Options& options, Feeder& feeder) {
  constexpr std::int64_t kMaxFindings = 10;
  Mutator mutator(parser.samples, parser.words, options.seed);
  ProgressBar progress(
      {.total = options.inputs, .label = parser.name, .terminal = is_terminal(stderr)});
  for (std::int64_t input = 1; input <= options.inputs; ++input) {
    Bytes bytes = mutator.next();
    if (parser.repair && mutator.once_in(2)) parser.repair(bytes);
    feeder.feed(bytes);
    if (feeder.count(kFinding) == kMaxFindings) return;
    progress.update(input, input, std::numeric_limits<double>::quiet_NaN());
  }
  progress.finish();
}

// Returns whether the parser passed, and prints its line.
bool run(const Parser& parser, const Options& options) {
  const double start = steady_seconds();
  Feeder feeder(parser, options.seed);
  for (const auto& path : regression_files(parser)) feeder.feed(content_of(path));
  for (const auto& sample : parser.samples) feeder.feed(sample);
  for (const auto& sample : parser.large) feeder.feed(sample);
  feed_mutations(parser, options, feeder);
  const auto accepted = feeder.count(kAccepted);
  const auto refused = feeder.count(kRefused);
  const auto findings = feeder.count(kFinding);
  fmt::print("{}: {} accepted, {} refused, {} findings, {:.1f} s\n", parser.name, accepted, refused,
             findings, steady_seconds() - start);
  std::fflush(stdout);
  const bool both = accepted > 0 && refused > 0;
  if (!both) fmt::print(stderr, "{}: these inputs are all alike\n", parser.name);
  return findings == 0 && both;
}

// One file alone. Prints what becomes of it, and returns whether that may be.
bool run_file(const Parser& parser, const Options& options) {
  std::string text;
  const Outcome outcome = outcome_of(parser, content_of(options.file), text);
  constexpr std::array kWords = {"accepted", "refused: ", "neither taken nor refused: "};
  fmt::print("{}{}\n", kWords[outcome], text);
  return outcome != kFinding;
}

void read_command_line(int argc, char** argv, CLI::App& app, Options& options) {
  app.add_option("--inputs", options.inputs, "damaged samples for each parser")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "other inputs")->capture_default_str();
  auto* const only = app.add_option("--only", options.only, "this parser alone");
  app.add_option("--file", options.file, "this input alone")->needs(only)->check(CLI::ExistingFile);
  app.add_flag("--list", options.list, "name the parsers, and the sources that each must reach");
  app.parse(argc, argv);
}

std::vector<Parser> all_parsers() {
  std::vector<Parser> all;
  for (auto* const some : {file_parsers, configuration_parsers, environment_parsers}) {
    std::ranges::move(some(), std::back_inserter(all));
  }
  return all;
}

// Exit code: 0 no finding, 1 some, 2 wrong usage.
int run_all(const Options& options) {
  bool passed = true;
  bool found = false;
  for (const auto& parser : all_parsers()) {
    if (!options.only.empty() && parser.name != options.only) continue;
    found = true;
    if (options.list) {
      fmt::print("{} {}\n", parser.name, fmt::join(parser.sources, " "));
    } else {
      passed = (options.file.empty() ? run : run_file)(parser, options) && passed;
    }
  }
  if (!found) fmt::print(stderr, "error: there is no parser '{}': see --list\n", options.only);
  if (!found) return 2;
  return passed ? 0 : 1;
}

}  // namespace
}  // namespace ladder

int main(int argc, char** argv) {
  CLI::App app("Feeds damaged inputs to each parser of what comes from elsewhere.");
  ladder::Options options;
  try {
    ladder::read_command_line(argc, argv, app, options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return ladder::run_all(options);
}
