// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/types.h>

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ladder/accelerate/accelerated_data_loader.h"
#include "ladder/accelerate/accelerated_optimizer.h"
#include "ladder/accelerate/accelerator_state.h"
#include "ladder/accelerate/joined_batches.h"
#include "ladder/checkpoint/training_state.h"
#include "ladder/data/data_loader.h"
#include "ladder/guest/adapt.h"
#include "ladder/nn/model.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/parallel/gradient_reducer.h"

namespace ladder {

// A module that is no Model.
struct PreparedModule {
  std::shared_ptr<torch::nn::Module> module;
  std::unique_ptr<GradientReducer> reducer;  // null on one process
};

// The objects that Accelerator::prepare prepares, and those that are registered: all that a
// checkpoint has. What becomes of each:
//
//     std::shared_ptr<Model>           on the device, under autocast if the precision is mixed;
//                                      with several processes wrapped in
//                                      DistributedDataParallel, or as `replicate` says (a
//                                      collective)
//     any other torch::nn module       the same object, on the device; with several processes a
//                                      GradientReducer averages its gradients (a collective).
//                                      Call its forward as before. Under mixed precision it runs
//                                      in 16 bits while an Accumulation or autocast() lives
//     torch::optim::Optimizer          an AcceleratedOptimizer
//     LrScheduler, or of torch::optim  an AcceleratedScheduler; one of torch::optim after its
//                                      optimizer: checkpoints hold its number of steps
//     DataLoader                       an AcceleratedDataLoader
//     any other range of batches       JoinedBatches: each process gets one batch in turn of a
//                                      sequence that is the same on all. A loader of torch::data
//                                      that shuffles: torch::manual_seed(seed + epoch) on all
//                                      before each pass
//
// Modules are holders or shared pointers. Optimizers and schedules are unique pointers (moved),
// shared pointers, or objects: moved, or alive as long as what prepare returned is used. Classes
// derived from these are taken as well. A prepared object is returned unchanged.
//
// One that replaces another, such as a new optimizer in each epoch, takes its place in checkpoints:
// an optimizer of the same parameters, or a loader of the same data set, when nobody holds what
// prepare returned for the other.
class PreparedObjects {
 public:
  // Uses `shared` as long as it lives.
  explicit PreparedObjects(const AcceleratorState& shared);

  // By the table above. Throws UsageError for an optimizer or a dtype that no checkpoint could
  // save.
  template <typename Object>
  auto prepare(Object&& object);
  std::shared_ptr<Model> prepare_model(std::shared_ptr<Model> model);
  void prepare_module(const std::shared_ptr<torch::nn::Module>& module);
  std::shared_ptr<AcceleratedOptimizer> prepare_optimizer(
      std::shared_ptr<torch::optim::Optimizer> optimizer);
  std::shared_ptr<AcceleratedScheduler> prepare_scheduler(std::shared_ptr<LrScheduler> scheduler);
  // Throws UsageError unless its optimizer is prepared.
  std::shared_ptr<AcceleratedScheduler> prepare_scheduler(
      const std::shared_ptr<torch::optim::LRScheduler>& scheduler);
  AcceleratedDataLoader prepare_data_loader(DataLoader loader);
  AcceleratedDataLoader prepare_eval_loader(DataLoader loader) const;
  // This process gets each `parts`-th batch, from number `part` on.
  template <typename Range>
  JoinedBatches<Range> join(Range&& batches, int part, int parts) const {
    return {std::forward<Range>(batches), shared_.group, shared_.gradients,
            shared_.batch_device(),       part,          parts};
  }

  // Registers an object that checkpoints have. It has
  //     nlohmann::json state_dict() const;
  //     std::function<void()> plan_load(const nlohmann::json& state, std::string_view origin);
  // where plan_load checks the state and returns the function that applies it; or, instead of it,
  //     void load_state_dict(const nlohmann::json& state, std::string_view origin);
  // The name of its file is by default custom_checkpoint_N.json, by the order of registration. If
  // its state differs between the processes, as of an environment, each writes and loads its own;
  // see json_part (checkpoint_parts.h) for another number of processes.
  template <typename Object>
  void register_for_checkpointing(Object& object, const std::string& file) {
    const std::string next = "custom_checkpoint_" + std::to_string(custom_files_) + ".json";
    state_.custom.push_back(json_part(object, file.empty() ? next : file));
    if (file.empty()) ++custom_files_;
  }

  // See Accelerator::free_memory.
  void free_memory();
  void free_memory(const torch::nn::Module& module);
  void free_memory(AcceleratedOptimizer& optimizer);
  void free_memory(const AcceleratedDataLoader& loader);

  const std::vector<std::shared_ptr<torch::nn::Module>>& models() const { return state_.models; }
  const std::vector<PreparedModule>& modules() const { return modules_; }
  const PreparedOptimizers& optimizers() const { return *optimizers_; }

  // All that a checkpoint has.
  TrainingState state() const;

 private:
  // Whether `Object` is derived from `Base`, or a pointer that can be shared.
  template <typename Base, typename Object>
  static constexpr bool kIsOrPointsTo = std::is_convertible_v<Object, std::shared_ptr<Base>> ||
                                        std::is_base_of_v<Base, std::remove_cvref_t<Object>>;

  template <typename Base, typename Object>
  static std::shared_ptr<Base> shared(Object&& object) {
    if constexpr (std::is_convertible_v<Object, std::shared_ptr<Base>>) {
      return std::forward<Object>(object);
    } else if constexpr (std::is_lvalue_reference_v<Object>) {
      return {std::shared_ptr<void>(), &object};  // owned by the caller
    } else {
      return std::make_shared<Object>(std::forward<Object>(object));
    }
  }

  std::size_t make_place_for(const torch::optim::Optimizer& optimizer);

  const AcceleratorState& shared_;
  std::shared_ptr<PreparedOptimizers> optimizers_ = std::make_shared<PreparedOptimizers>();
  std::vector<std::shared_ptr<AcceleratedScheduler>> schedulers_;
  std::vector<PreparedModule> modules_;
  TrainingState state_;  // without loaders
  std::vector<AcceleratedDataLoader> loaders_;
  std::set<std::size_t> free_schedule_places_;  // of optimizers that were replaced
  std::size_t custom_files_ = 0;
};

template <typename Object>
auto PreparedObjects::prepare(Object&& object) {
  using Type = std::remove_cvref_t<Object>;
  using torch::optim::LRScheduler;
  if constexpr (std::is_convertible_v<Object, std::shared_ptr<Model>>) {
    return prepare_model(std::forward<Object>(object));
  } else if constexpr (AnyModule<Type>) {
    prepare_module(module_pointer(object));
    return Type(object);
  } else if constexpr (kIsOrPointsTo<torch::optim::Optimizer, Object>) {
    return prepare_optimizer(shared<torch::optim::Optimizer>(std::forward<Object>(object)));
  } else if constexpr (kIsOrPointsTo<LrScheduler, Object>) {
    return prepare_scheduler(shared<LrScheduler>(std::forward<Object>(object)));
  } else if constexpr (kIsOrPointsTo<LRScheduler, Object>) {
    return prepare_scheduler(shared<LRScheduler>(std::forward<Object>(object)));
  } else if constexpr (std::is_same_v<Type, DataLoader>) {
    return prepare_data_loader(std::forward<Object>(object));
  } else if constexpr (std::is_same_v<Type, AcceleratedDataLoader> ||
                       std::is_same_v<Type, std::shared_ptr<AcceleratedOptimizer>> ||
                       std::is_same_v<Type, std::shared_ptr<AcceleratedScheduler>> ||
                       requires { typename Type::IsJoined; }) {
    return Type(std::forward<Object>(object));
  } else if constexpr (BatchRange<Object>) {
    return join(std::forward<Object>(object), shared_.group.rank(), shared_.group.world_size());
  } else {
    static_assert(
        std::is_void_v<Object>,  // never
        "Accelerator::prepare takes a module (a holder of TORCH_MODULE or torch::nn, or a "
        "std::shared_ptr), an optimizer or a schedule (an object, a std::shared_ptr, or a "
        "std::unique_ptr with std::move), a DataLoader, or a range of batches");
    return nullptr;
  }
}

}  // namespace ladder
