// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ladder {

// Name and version of ladder and of each library in the program: LibTorch, CUDA, oneDNN, ... For
// --version and for the record of a run, because results depend on them.
std::vector<std::pair<std::string, std::string>> library_versions();

}  // namespace ladder
