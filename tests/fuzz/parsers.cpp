// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/parsers.h"

#include <iterator>
#include <utility>

namespace ladder {

std::vector<Parser> all_parsers() {
  std::vector<Parser> all;
  for (auto* const some :
       {file_parsers, configuration_parsers, environment_parsers, state_parsers}) {
    auto parsers = some();
    std::move(parsers.begin(), parsers.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace ladder
