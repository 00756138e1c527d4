// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/convert_sync_batchnorm.h"

#include <torch/nn/modules/batchnorm.h>

#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/nn/batch_norm.h"
#include "ladder/parallel/data_parallel.h"
#include "ladder/parallel/distributed_data_parallel.h"

namespace ladder {
namespace {

template <typename... Types>
bool is_one_of(const torch::nn::Module& module) {
  return (... || (dynamic_cast<const Types*>(&module) != nullptr));
}

void require_convertible(const std::string& name, const torch::nn::Module& module) {
  if (is_one_of<DistributedDataParallel, DataParallel>(module)) {
    throw UsageError::conflict("convert_sync_batchnorm", "the model is wrapped already",
                               "convert the network first, then wrap it");
  }
  if (is_one_of<torch::nn::BatchNorm1dImpl, torch::nn::BatchNorm2dImpl, torch::nn::BatchNorm3dImpl>(
          module)) {
    throw UsageError::conflict("convert_sync_batchnorm",
                               name + " is a BatchNorm of torch::nn, which cannot be converted",
                               "build the network with ladder::BatchNorm");
  }
}

}  // namespace

int convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup& group) {
  std::vector<BatchNormImpl*> found;
  require_convertible("the module", module);
  if (auto* norm = dynamic_cast<BatchNormImpl*>(&module)) found.push_back(norm);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    require_convertible(item.key(), *item.value());
    if (auto* norm = dynamic_cast<BatchNormImpl*>(item.value().get())) found.push_back(norm);
  }
  for (auto* norm : found) norm->set_process_group(group);
  return static_cast<int>(found.size());
}

}  // namespace ladder
