// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "ladder/data/inputs.h"
#include "ladder/nn/model.h"

namespace ladder {

namespace exported {
struct LoadedProgram;
struct Program;
}  // namespace exported

// A network that Python has defined and export_network.py has written, to be trained here. It runs
// the operators of the two graphs in the file, one for train() and one for eval(), with autograd.
//
//     auto model = std::make_shared<ladder::ExportedModule>("net.pt2");
//     model->to(device);
//
// A Model like any other: wrappers, optimizers, checkpoints and the Trainer take it. Parameters and
// buffers have the names and the order of Python's state dictionary, so save_model writes weights
// that Python loads by name. The initial weights are those of the file. Dropout draws from
// LibTorch's generator.
//
// The mode is that of the whole network: a layer in it that is set to another mode does not change.
//
// The constructor throws DataError (exit code 3) for a damaged file, and for what is not supported:
// docs/exported-network.md. A file holds no code and is never unpickled.
class ExportedModule : public Model {
 public:
  explicit ExportedModule(const std::string& path);

  // Inputs by the names of the arguments of Python's forward; a single one may have any name.
  // Throws UsageError for a network with several outputs, and for inputs of other sizes than the
  // export allows.
  torch::Tensor forward(const Inputs& inputs) override;

  // All outputs, in the order of Python's: for GradientReducer.
  std::vector<torch::Tensor> outputs(const Inputs& inputs);

  std::shared_ptr<Model> new_like() const override;

 private:
  explicit ExportedModule(exported::LoadedProgram loaded);

  std::shared_ptr<const exported::Program> program_;
  std::vector<torch::Tensor> tensors_;  // in the order of the program's
};

}  // namespace ladder
