// SPDX-License-Identifier: Apache-2.0
#include "ladder/exact/exact_data_parallel.h"

#include <fmt/core.h>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <torch/autograd.h>
#include <torch/nn/modules/dropout.h>
#include <torch/utils.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/core/one_thread.h"
#include "ladder/exact/exact_sums.h"
#include "ladder/kernels/weight_products.h"
#include "ladder/nn/batch_norm.h"
#include "ladder/nn/dropout.h"
#include "ladder/nn/linear.h"
#include "ladder/nn/random_scope.h"
#include "ladder/parallel/averaged_gradient.h"
#include "ladder/parallel/replica_check.h"
#include "ladder/parallel/replicas.h"
#include "ladder/parallel/replicate.h"
#include "ladder/parallel/version_counter_guard.h"

namespace ladder {
namespace {

using Tensors = ExactSums::Tensors;

constexpr const char* kExact = "ExactDataParallel";

// The indices of the wanted tensors, each tensor once.
template <typename IsWanted>
std::vector<std::size_t> indices_of(const Tensors& tensors, const IsWanted& is_wanted) {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool known = std::any_of(indices.begin(), indices.end(), [&](std::size_t other) {
      return tensors[other].is_same(tensors[i]);
    });
    if (!known && is_wanted(tensors[i])) indices.push_back(i);
  }
  return indices;
}

Tensors at_indices(const std::vector<std::size_t>& indices, const Tensors& tensors) {
  Tensors result;
  for (const auto index : indices) result.push_back(tensors[index]);
  return result;
}

bool is_trained(const torch::Tensor& parameter) { return parameter.requires_grad(); }

// Whether a buffer may hold statistics.
bool is_number(const torch::Tensor& buffer) {
  return buffer.scalar_type() != torch::kBool && !buffer.is_complex();
}

Tensors as_float(const Tensors& tensors) {
  Tensors result;
  for (const auto& tensor : tensors) result.push_back(tensor.to(torch::kFloat));
  return result;
}

template <typename... Layers>
bool is_active_one_of(const torch::nn::Module& module) {
  const auto is_active = [](const auto* layer) { return layer && layer->options.p() > 0.0; };
  return (is_active(dynamic_cast<const Layers*>(&module)) || ...);
}

// Whether a layer draws masks from PyTorch's generator, one after the other.
bool draws_in_turn(const torch::nn::Module& module) {
  namespace nn = torch::nn;
  if (const auto* const dropout = dynamic_cast<const Dropout*>(&module)) {
    return dropout->options().masks == DropoutMasks::kByGenerator && dropout->options().p > 0.0;
  }
  return is_active_one_of<nn::DropoutImpl, nn::Dropout2dImpl, nn::Dropout3dImpl,
                          nn::AlphaDropoutImpl, nn::FeatureAlphaDropoutImpl>(module);
}

void check(const Model& model, const ExactDataParallelOptions& options) {
  if (options.micro_batch < 1 || options.micro_batch > kMaxSamplesPerBatch) {
    throw UsageError::out_of_range(
        "micro_batch", options.micro_batch, fmt::format("1 to {}", kMaxSamplesPerBatch),
        fmt::format("such as {}", ExactDataParallelOptions{}.micro_batch));
  }
  if (options.threads < 0) {
    throw UsageError::out_of_range("threads", options.threads, "a number >= 0",
                                   "0 takes the threads of the process");
  }
  const auto parameters = model.parameters();
  if (!parameters.empty()) require_on_device(kExact, model, parameters.front().device());
  for (const auto& module : model.modules()) {
    if (draws_in_turn(*module)) {
      throw UsageError::conflict(
          kExact, "Dropout with masks of PyTorch's generator, which depend on the order of draws",
          "use ladder::Dropout with DropoutMasks::kByPosition, in a RandomScope");
    }
    const auto* const norm = dynamic_cast<const BatchNormImpl*>(module.get());
    if (norm == nullptr || !norm->is_synchronised()) continue;
    throw UsageError::conflict(
        kExact, "SyncBatchNorm, which adds floats over the ranks, so that the sum depends on them",
        "do not convert the model: each micro-batch has statistics of its own, on any number of "
        "ranks");
  }
}

}  // namespace

// The replicas of this process, one a thread, which share the memory of the model's parameters and
// have buffers of their own.
class ExactDataParallel::Replicas {
 public:
  struct Pass : ReplicaPass {
    using ReplicaPass::ReplicaPass;
    std::vector<Tensors> statistics;  // of each micro-batch: the changes of the buffers
    bool sync = true;
  };

  Replicas(Model& model, ProcessGroup group, ExactDataParallelOptions options)
      : group_(std::move(group)),
        options_(std::move(options)),
        parameters_(model.parameters()),
        trained_(indices_of(parameters_, is_trained)),
        numbers_(indices_of(model.buffers(), is_number)),
        statistics_(statistics_of(model)),
        device_(parameters_.empty() ? torch::Device(torch::kCPU) : parameters_.front().device()),
        sums_(trained_of(parameters_), as_float(statistics_)) {
    for (const auto& parameter : trained()) {
      marks_.push_back(AveragedGradient::mark(parameter, model, group_));
    }
    for (std::int64_t i = 0; i < number_of_threads(); ++i) {
      replicas_.push_back({model.new_like(), {}});
      keep_products(replicas_.back());
    }
  }

  std::int64_t micro_batch() const { return options_.micro_batch; }
  void forget() { sums_.clear(); }
  const torch::Device& device() const { return device_; }

  void compare_sometimes(const Model& model) {
    const auto interval = options_.check_replicas;
    if (interval > 0 && forwards_++ % interval == 0) require_equal_parameters(model, group_);
  }

  // The trained parameters among all.
  Tensors trained_of(const Tensors& parameters) const { return at_indices(trained_, parameters); }
  Tensors trained() const { return trained_of(parameters_); }

  c10::intrusive_ptr<Pass> forward(const Model& model, const Inputs& inputs, bool sync,
                                   bool with_grad) {
    refresh(model);
    const auto detached =
        inputs.map([&](const auto& tensor) { return tensor.to(device_).detach(); });
    auto pass = c10::make_intrusive<Pass>(inputs, detached.split(options_.micro_batch));
    pass->sync = sync;
    pass->statistics.resize(pass->inputs.size());
    const auto keys = divide_random_key(pass->inputs);
    for_micro_batches(pass->inputs.size(), [&](Replica& replica, std::size_t k) {
      auto& own = *replica.model;
      const torch::AutoGradMode grad_mode(with_grad);
      std::optional<RandomScope> random;
      if (keys[k]) random.emplace(*keys[k]);
      pass->begin_part(k, inputs, device_, with_grad);
      copy_statistics(own);
      pass->outputs[k] = own.forward(pass->inputs[k]);
      if (with_grad) pass->statistics[k] = changes_of_statistics(own);  // for the backward
    });
    if (pass->outputs.empty()) pass->outputs.push_back(empty_output(detached));
    return pass;
  }

  // See ReplicaPass::backward.
  Tensors backward(const Pass& pass, const torch::Tensor& gradient) {
    const std::size_t count = pass.inputs.size();
    const double loss_scale = options_.loss_scale ? options_.loss_scale() : 1.0;
    std::vector<ExactSums::Addends> found(count);
    std::vector<Tensors> of_inputs(count);
    for_micro_batches(count, [&](Replica& replica, std::size_t k) {
      const auto begin = static_cast<std::int64_t>(k) * options_.micro_batch;
      const auto& output = pass.outputs[k];
      const auto leaves = pass.leaves(k, trained_of(replica.model->parameters()));
      for (const auto& products : replica.products) products->kept.clear();
      auto gradients = torch::autograd::grad(
          {output}, leaves, {gradient.narrow(0, begin, output.size(0)).to(output.device())},
          /*retain_graph=*/std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
      of_inputs[k].assign(gradients.begin() + std::ssize(trained_), gradients.end());
      gradients.resize(trained_.size());
      std::vector<Products> products;
      for (const auto& each : replica.products) products.push_back(std::move(each->kept));
      found[k] = {std::move(gradients), std::move(products), pass.statistics[k]};
    });
    auto result = pass.gradients_of_inputs(of_inputs, device_);
    if (!pass.sync) {
      sums_.add(found, loss_scale);
      result.resize(result.size() + trained_.size());
      return result;
    }
    auto totals = sums_.finish(found, loss_scale, group_);
    add_to_statistics(totals.statistics);
    std::move(totals.gradients.begin(), totals.gradients.end(), std::back_inserter(result));
    return result;
  }

 private:
  struct Replica {
    std::shared_ptr<Model> model;
    // Of each trained parameter: what its layers keep in a backward.
    std::vector<c10::intrusive_ptr<WeightProducts>> products;
  };

  void keep_products(Replica& replica) const {
    for (const auto& weight : trained_of(replica.model->parameters())) {
      replica.products.push_back(c10::make_intrusive<WeightProducts>());
      for (const auto& module : replica.model->modules()) {
        auto* const linear = dynamic_cast<LinearImpl*>(module.get());
        if (linear != nullptr && linear->weight.is_same(weight)) {
          linear->keep_products(replica.products.back());
        }
      }
    }
  }

  // On a GPU one: the engine has a thread per device, and this may be that thread.
  std::int64_t number_of_threads() const {
    if (!device_.is_cpu()) return 1;
    return options_.threads > 0 ? options_.threads : at::get_num_threads();
  }

  // Gives the replicas the model's memory and mode.
  void refresh(const Model& model) {
    const torch::NoGradGuard no_grad;
    if (indices_of(parameters_, is_trained) != trained_) {
      throw UsageError::conflict(kExact, "requires_grad of a parameter changed after construction",
                                 "freeze parameters first, then construct ExactDataParallel");
    }
    const auto modes = modes_of(model);
    for (const auto& [replica, products] : replicas_) {
      const auto own = replica->parameters();
      share_memory(parameters_, own);
      for (std::size_t i = 0; i < own.size(); ++i) {
        own[i].set_requires_grad(parameters_[i].requires_grad());
      }
      set_modes(*replica, modes);
    }
  }

  Tensors statistics_of(const Model& model) const { return at_indices(numbers_, model.buffers()); }

  // Each micro-batch begins with the statistics of the model.
  void copy_statistics(const Model& replica) const {
    const torch::NoGradGuard no_grad;
    const auto own = statistics_of(replica);
    const VersionCounterGuard keep(own);
    for (std::size_t i = 0; i < own.size(); ++i) own[i].copy_(statistics_[i]);
  }

  // Zero where a number stays as it is, an infinite one of a mask included.
  Tensors changes_of_statistics(const Model& replica) const {
    const torch::NoGradGuard no_grad;
    const auto own = statistics_of(replica);
    Tensors changes;
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto change = (own[i] - statistics_[i]).masked_fill(own[i] == statistics_[i], 0);
      changes.push_back(change.to(torch::kFloat));
    }
    return changes;
  }

  void add_to_statistics(const Tensors& changes) const {
    const torch::NoGradGuard no_grad;
    const VersionCounterGuard keep(statistics_);
    for (std::size_t i = 0; i < changes.size(); ++i) {
      if (changes[i].defined()) statistics_[i].add_(changes[i].to(statistics_[i].scalar_type()));
    }
  }

  // The form of the output, for a rank without samples.
  torch::Tensor empty_output(const Inputs& inputs) const {
    const torch::NoGradGuard no_grad;
    auto& model = *replicas_.front().model;
    model.eval();  // refresh() sets the mode
    return model.forward(inputs);
  }

  // Micro-batch k < count on the replica of a thread, with the caller's thread-local state. The
  // threads are those of LibTorch's operations: others would compete with them, because a thread of
  // OpenMP keeps a core busy for a while after its work.
  void for_micro_batches(std::size_t count,
                         const std::function<void(Replica& replica, std::size_t k)>& task) {
    const at::ThreadLocalState state;
    const auto threads = std::min(count, replicas_.size());
    at::parallel_for(0, static_cast<std::int64_t>(threads), 1, [&](auto begin, auto end) {
      const at::ThreadLocalStateGuard same_state(state);
      const OneThread one_thread;
      for (auto thread = static_cast<std::size_t>(begin); std::cmp_less(thread, end); ++thread) {
        for (auto k = thread; k < count; k += threads) task(replicas_[thread], k);
      }
    });
  }

  const ProcessGroup group_;
  const ExactDataParallelOptions options_;
  const Tensors parameters_;
  const std::vector<std::size_t> trained_;
  const std::vector<std::size_t> numbers_;  // the buffers that may hold statistics
  const Tensors statistics_;
  const torch::Device device_;
  ExactSums sums_;
  std::vector<Replica> replicas_;             // one a thread
  std::vector<std::shared_ptr<void>> marks_;  // of the trained parameters
  std::int64_t forwards_ = 0;
};

ExactDataParallel::ExactDataParallel(std::shared_ptr<Model> module, ProcessGroup group,
                                     ExactDataParallelOptions options)
    : ReplicatedModel(std::move(module)) {
  check(*module_, options);
  require_same_parameters(*module_, group);
  broadcast_replica(*module_, group);
  replicas_ = std::make_shared<Replicas>(*module_, std::move(group), std::move(options));
}

ExactDataParallel::~ExactDataParallel() = default;

std::int64_t ExactDataParallel::micro_batch() const { return replicas_->micro_batch(); }

void ExactDataParallel::forget() { replicas_->forget(); }

torch::Tensor ExactDataParallel::forward(const Inputs& inputs) {
  RECORD_USER_SCOPE("ExactDataParallel.forward");  // for StepTrace
  if (!torch::GradMode::is_enabled()) {
    const auto pass = replicas_->forward(*module_, inputs, /*sync=*/false, /*with_grad=*/false);
    return pass->joined_output(replicas_->device());
  }
  replicas_->compare_sometimes(*module_);
  Tensors leaves;
  for (const auto& [name, tensor] : inputs) leaves.push_back(tensor);
  for (const auto& parameter : replicas_->trained()) leaves.push_back(parameter);
  const auto forward = [&] {
    auto pass = replicas_->forward(*module_, inputs, /*sync=*/*pauses_ == 0, /*with_grad=*/true);
    pass->backward = [replicas = replicas_, own = pass.get()](const torch::Tensor& gradient) {
      return replicas->backward(*own, gradient);
    };
    return pass;
  };
  return apply_as_one_node(forward, replicas_->device(), leaves);
}

}  // namespace ladder

extern "C" const bool ladder_exact_data_parallel;
const bool ladder_exact_data_parallel = ladder::add_sums(
    "exact", "in integers, the same weights for any number of ranks",
    [](std::shared_ptr<ladder::Model> model, ladder::ProcessGroup group,
       const ladder::ReplicateOptions& how) -> std::shared_ptr<ladder::ReplicatedModel> {
      return std::make_shared<ladder::ExactDataParallel>(std::move(model), std::move(group), how);
    });
