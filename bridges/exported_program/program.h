// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "bridges/exported_program/graph.h"

namespace ladder::exported {

// What a .pt2 file of export_network.py holds, without the values of its tensors. The weights of
// `train` have the order of Python's state dictionary.
struct Program {
  std::string path;
  Graph train, eval;
};

// Also the values: `tensors`, parameters with requires_grad as in Python. Throws DataError.
struct LoadedProgram {
  std::shared_ptr<const Program> program;
  std::vector<torch::Tensor> tensors;
};
LoadedProgram load_program(const std::string& path);

}  // namespace ladder::exported
