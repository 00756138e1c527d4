// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "bridges/exported_program/graph.h"

namespace ladder::exported {

// What a .pt2 file of export_network.py holds, without the values of its tensors.
struct Program {
  // A name of a tensor, in the order of Python's state dictionary. Tied weights share a tensor.
  struct Name {
    std::string name;
    Graph::Kind kind = Graph::Kind::kParameter;
    std::size_t tensor = 0;
  };

  std::string path;
  std::vector<Name> names;
  Graph train, eval;
  std::vector<std::size_t> train_tensors, eval_tensors;  // of each weight of the graph
};

// Also the values: `tensors`, parameters with requires_grad as in Python. Throws DataError.
struct LoadedProgram {
  Program program;
  std::vector<torch::Tensor> tensors;
};
LoadedProgram load_program(const std::string& path);

}  // namespace ladder::exported
