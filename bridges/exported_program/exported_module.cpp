// SPDX-License-Identifier: Apache-2.0
#include "bridges/exported_program/exported_module.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "bridges/exported_program/program.h"
#include "bridges/exported_program/schema.h"
#include "ladder/core/error.h"
#include "ladder/core/text.h"

namespace ladder {
namespace {

using exported::Graph;

constexpr std::size_t kDeepest = 64;  // modules in each other

// Registers tensors under names with dots, in modules that it makes.
class ModuleTree {
 public:
  ModuleTree(torch::nn::Module& root, std::string path) : root_(root), path_(std::move(path)) {}

  void add(const Graph::Weight& weight, const torch::Tensor& tensor) {
    const auto parts = split(weight.name, '.');
    if (parts.size() > kDeepest || std::count(parts.begin(), parts.end(), "") > 0) {
      throw DataError::mismatch(path_,
                                fmt::format("names of at most {} modules in each other", kDeepest),
                                quoted_for_message(weight.name), exported::kExportAgain);
    }
    auto* module = &root_;
    std::string prefix;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      prefix += parts[i] + '.';
      auto& child = children_[prefix];
      if (!child) {
        child = module->register_module(parts[i], std::make_shared<torch::nn::Module>(parts[i]));
      }
      module = child.get();
    }
    if (weight.kind == Graph::Kind::kBuffer) {
      module->register_buffer(parts.back(), tensor);
    } else {
      module->register_parameter(parts.back(), tensor, tensor.requires_grad());
    }
  }

 private:
  torch::nn::Module& root_;
  std::string path_;  // of the file
  std::map<std::string, std::shared_ptr<torch::nn::Module>> children_;
};

}  // namespace

ExportedModule::ExportedModule(const std::string& path)
    : ExportedModule(exported::load_program(path)) {}

ExportedModule::ExportedModule(exported::LoadedProgram loaded)
    : program_(std::move(loaded.program)), tensors_(std::move(loaded.tensors)) {
  ModuleTree tree(*this, program_->path);
  for (const auto& weight : program_->train.weights) {
    if (weight.kind != Graph::Kind::kConstant) tree.add(weight, tensors_[weight.tensor]);
  }
}

std::vector<torch::Tensor> ExportedModule::outputs(const Inputs& inputs) {
  return (is_training() ? program_->train : program_->eval).run(tensors_, inputs);
}

torch::Tensor ExportedModule::forward(const Inputs& inputs) {
  const auto count = (is_training() ? program_->train : program_->eval).outputs.size();
  if (count == 1) return outputs(inputs).front();
  throw UsageError::malformed("ExportedModule::forward", "a network with one output",
                              fmt::format("{} outputs", count),
                              "call outputs(inputs), with a GradientReducer on several ranks");
}

std::shared_ptr<Model> ExportedModule::new_like() const {
  std::vector<torch::Tensor> copies;
  for (const auto& tensor : tensors_) {
    copies.push_back(tensor.detach().clone().set_requires_grad(tensor.requires_grad()));
  }
  auto copy = std::shared_ptr<ExportedModule>(new ExportedModule({program_, std::move(copies)}));
  set_modes(*copy, modes_of(*this));
  return copy;
}

}  // namespace ladder
