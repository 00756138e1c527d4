// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace ladder {

struct SnapshotOptions {
  std::string path;        // folder of the snapshot; empty = none
  std::int64_t steps = 0;  // optimizer steps between two snapshots; 0 = one after each epoch
};

}  // namespace ladder
