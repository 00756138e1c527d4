// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "ladder/io/option_table.h"

namespace mnist {

// A file or folder that a flag names.
struct NamedFile {
  std::string flag;
  std::string path;  // empty = none
  ladder::PathRole role = ladder::PathRole::kNone;
  const char* files = "*";  // of a folder: the patterns of what the run has there, with | between
};

// Throws UsageError if the run would write a file over one that it reads, over another one that it
// writes, or over one in a folder of the run, also by way of links. Flag --save may name the file
// of
// --load, which is replaced when the new one is whole.
void require_distinct_files(std::vector<NamedFile> files);

}  // namespace mnist
