// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace mnist {

// A file that a flag names.
struct NamedFile {
  std::string flag;
  std::string path;       // empty = none
  bool of_ranks = false;  // each further rank N writes a.rankN.json beside a.json
};

// Throws UsageError if a run would write over a file that it reads, or two outputs are one file,
// also by way of links. `data_root` is the folder of MNIST's four files. Flag --save may name the
// file of --load, which is replaced when the new one is whole.
void require_distinct_files(const std::vector<NamedFile>& outputs,
                            const std::vector<NamedFile>& inputs, const std::string& data_root);

}  // namespace mnist
