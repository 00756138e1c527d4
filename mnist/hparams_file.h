// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace mnist {

// Reads the file of `--hparams file.yaml`: one flag per line, such as
//
//     epochs: 3
//     batch_size: 64
//     lr: 1e-3
//
// Returns (name, value) in the order of the file. A name is the flag without its dashes, with - for
// _; it is not checked here. A value is the text of the file, for the flag's own parser: 1e-3 is a
// number for it, and a string for Python's YAML. Throws UsageError with file and line for a list or
// a map, for a value that is missing or spans several lines, and for a name that is set twice.
std::vector<std::pair<std::string, std::string>> read_hparams(const std::string& path);

}  // namespace mnist
