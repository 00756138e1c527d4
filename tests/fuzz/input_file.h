// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ladder/core/unique_fd.h"
#include "tests/support/sample_files.h"
#include "tests/support/temporary_folder.h"

namespace ladder {

// A file in memory, for readers that take a path.
class InputFile {
 public:
  // `name` is the path's last part.
  explicit InputFile(const std::string& name);

  // Returns the path of a file that holds these bytes.
  const std::string& with(const Bytes& bytes) const;

 private:
  UniqueFd descriptor_;
  TemporaryFolder folder_;
  std::string path_;  // a link to the memory
};

}  // namespace ladder
