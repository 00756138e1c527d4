// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/convert_sync_batchnorm.h"

#include <ATen/ops/batch_norm_native.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/utils.h>

#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/nn/batch_norm.h"
#include "ladder/nn/sync_batch_norm.h"
#include "ladder/parallel/data_parallel.h"
#include "ladder/parallel/replicated_model.h"

namespace ladder {
namespace {

using OptionalTensor = std::optional<torch::Tensor>;

class LayerGroup;

// The groups of converted layers of torch::nn, by a tensor that forward passes to the operator.
class LayerGroups {
 public:
  static LayerGroups& of_process() {
    static LayerGroups groups;
    return groups;
  }

  void set(const torch::Tensor& key, const LayerGroup& group) {
    const std::unique_lock lock(mutex_);
    groups_.insert_or_assign(key.unsafeGetTensorImpl(), &group);
  }
  void erase(const torch::Tensor& key) {
    const std::unique_lock lock(mutex_);
    groups_.erase(key.unsafeGetTensorImpl());
  }
  // None in evaluation mode: a layer without running statistics uses those of its batch there too.
  std::optional<ProcessGroup> find(const OptionalTensor& weight, const OptionalTensor& mean) const;

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, const LayerGroup*> groups_;
};

// A submodule of a converted layer, without tensors: the layer is synchronised while it lives.
class LayerGroup : public torch::nn::Module {
 public:
  LayerGroup(torch::Tensor key, ProcessGroup group)
      : key_(std::move(key)), group_(std::move(group)) {
    LayerGroups::of_process().set(key_, *this);
  }
  ~LayerGroup() override { LayerGroups::of_process().erase(key_); }
  LayerGroup(const LayerGroup&) = delete;
  LayerGroup& operator=(const LayerGroup&) = delete;
  bool is_serializable() const override { return false; }  // archives of the plain network load

  const ProcessGroup& group() const { return group_; }

 private:
  torch::Tensor key_;
  ProcessGroup group_;
};

std::optional<ProcessGroup> LayerGroups::find(const OptionalTensor& weight,
                                              const OptionalTensor& mean) const {
  const auto& key = weight && weight->defined() ? weight : mean;
  if (!key) return std::nullopt;
  const std::shared_lock lock(mutex_);
  const auto found = groups_.find(key->unsafeGetTensorImpl());
  if (found == groups_.end() || !found->second->is_training()) return std::nullopt;
  return found->second->group();
}

// The operator that the forward of BatchNorm1d, 2d and 3d calls.
torch::Tensor batch_norm(const torch::Tensor& input, const OptionalTensor& weight,
                         const OptionalTensor& bias, const OptionalTensor& running_mean,
                         const OptionalTensor& running_var, bool training, double momentum,
                         double eps, bool cudnn_enabled) {
  const auto group = training ? LayerGroups::of_process().find(weight, running_mean) : std::nullopt;
  if (!group) {
    return at::native::batch_norm(input, weight, bias, running_mean, running_var, training,
                                  momentum, eps, cudnn_enabled);
  }
  const auto filled = [&](const OptionalTensor& given, double value) {
    if (given && given->defined()) return *given;
    return torch::full({input.size(1)}, value, input.options().dtype(torch::kFloat32));
  };
  return sync_batch_norm(input,
                         {.weight = filled(weight, 1.0),
                          .bias = filled(bias, 0.0),
                          .running_mean = filled(running_mean, 0.0),
                          .running_var = filled(running_var, 1.0)},
                         momentum, eps, sum_over_ranks_of(*group), SyncMath::kKernels);
}

// LibTorch's forward is not virtual, but the dispatcher chooses the kernel of its operator.
void register_operator() {
  static const auto libraries = [] {
    std::vector<std::unique_ptr<torch::Library>> all;
    for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
      all.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__,
                                                     static_cast<std::uint32_t>(__LINE__)));
      all.back()->impl("batch_norm", batch_norm);
    }
    return all;
  }();
}

template <typename... Types>
bool is_one_of(const torch::nn::Module& module) {
  return (... || (dynamic_cast<const Types*>(&module) != nullptr));
}

// The tensor by which the layer is known; undefined for other modules. In a network that was read
// from a file, modules have no class of their own: those with running statistics are layers.
torch::Tensor key_of(const torch::nn::Module& module) {
  using torch::nn::BatchNorm1dImpl, torch::nn::BatchNorm2dImpl, torch::nn::BatchNorm3dImpl;
  const auto parameters = module.named_parameters(/*recurse=*/false);
  const auto buffers = module.named_buffers(/*recurse=*/false);
  const auto* const mean = buffers.find("running_mean");
  const bool is_layer = is_one_of<BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl>(module) ||
                        (mean != nullptr && typeid(module) == typeid(torch::nn::Module));
  const auto* const weight = parameters.find("weight");
  const auto* const key = weight != nullptr ? weight : mean;
  return is_layer && key != nullptr ? *key : torch::Tensor();
}

bool convert(torch::nn::Module& module, const ProcessGroup& group) {
  constexpr const char* kChild = "process_group";
  if (auto* const own = dynamic_cast<BatchNormImpl*>(&module)) {
    own->set_sum_over_ranks(group.world_size() > 1 ? sum_over_ranks_of(group) : SumOverRanks());
    return true;
  }
  const auto key = key_of(module);
  if (!key.defined()) return false;
  register_operator();
  if (module.named_children().contains(kChild)) module.unregister_module(kChild);
  if (group.world_size() > 1) {
    module.register_module(kChild, std::make_shared<LayerGroup>(key, group))
        ->train(module.is_training());
  }
  return true;
}

}  // namespace

SumOverRanks sum_over_ranks_of(const ProcessGroup& group) {
  return [group](const torch::Tensor& local) { return group.all_gather_into_tensor(local).sum(0); };
}

int convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup& group) {
  std::vector<torch::nn::Module*> all = {&module};
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    all.push_back(item.value().get());
  }
  for (const auto* each : all) {
    if (!is_one_of<ReplicatedModel, DataParallel>(*each)) continue;
    throw UsageError::conflict("convert_sync_batchnorm", "the model is wrapped already",
                               "convert the network first, then wrap it");
  }
  int converted = 0;
  for (auto* each : all) converted += convert(*each, group) ? 1 : 0;
  return converted;
}

}  // namespace ladder
