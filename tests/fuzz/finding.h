// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "tests/support/sample_files.h"

namespace ladder {

// An input that a parser neither takes nor refuses becomes a file in the current folder, from which
// the same happens again: finding-PARSER-SEED-INPUT.

// Writes the file and says so, with the reason and the command that repeats it.
void write_finding(const std::string& parser, std::uint64_t seed, std::int64_t number,
                   const Bytes& bytes, const std::string& reason);

// The input that is being parsed. If the process is aborted meanwhile, as it is by a report of a
// sanitizer, or the input takes more than a minute, the file is written before the process ends.
class UnderWay {
 public:
  // Keeps references.
  UnderWay(const std::string& parser, std::uint64_t seed, std::int64_t number, const Bytes& bytes);
  ~UnderWay();
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
};

}  // namespace ladder
