// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/prepare.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "ladder/amp/autocast.h"
#include "ladder/amp/precision.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "ladder/guest/optimizer_archive.h"
#include "ladder/guest/torch_lr_scheduler.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/fully_sharded_data_parallel.h"
#include "ladder/parallel/replicate.h"
#include "ladder/parallel/zero_redundancy_optimizer.h"

namespace ladder {
namespace {

// Refuses a dtype that no checkpoint can hold here, not in the first save_state.
void require_savable(const torch::nn::Module& module) {
  for (const auto& [name, tensor] : state_dict(module)) safetensors_dtype(tensor.scalar_type());
}

// Copies of a loader share its position.
CheckpointPart position_of(const AcceleratedDataLoader& loader) {
  return json_part(
      "sampler.json", [loader] { return loader.state_dict(); },
      [loader](const auto& state, auto origin) { return loader.plan_load(state, origin); });
}

void require_object(const void* object, const char* expected) {
  if (object != nullptr) return;
  throw UsageError::missing("Accelerator::prepare", expected,
                            "the pointer is null: create it first");
}

ReplicateOptions replicate_options(const AcceleratorState& shared) {
  auto how = shared.options.replicate.scaled_by(*shared.scaler);
  how.check_replicas = shared.handlers.ddp.check_replicas;
  return how;
}

}  // namespace

PreparedObjects::PreparedObjects(const AcceleratorState& shared) : shared_(shared) {
  state_.scaler = shared.scaler;
  state_.device = shared.device;
}

std::shared_ptr<Model> PreparedObjects::prepare_model(std::shared_ptr<Model> model) {
  require_object(model.get(), "a model");
  for (const auto& known : state_.models) {
    const auto prepared = std::dynamic_pointer_cast<Model>(known);
    if (prepared && &unwrapped(*prepared) == &unwrapped(*model)) return prepared;
  }
  require_savable(*model);
  if (shared_.options.device_placement) model->to(shared_.device);
  if (shared_.is_mixed() && !shared_.options.fully_sharded) {
    model = std::make_shared<AutocastModel>(model, dtype_of(shared_.config.mixed_precision));
  }
  if (shared_.options.replicate.in_micro_batches()) {
    model = replicate(std::move(model), shared_.group, replicate_options(shared_));
  } else if (shared_.options.fully_sharded) {
    // Whole parameters in 16 bits: copies that autocast makes of them would live until backward.
    auto options = *shared_.options.fully_sharded;
    if (shared_.is_mixed()) options.param_precision = shared_.config.mixed_precision;
    model = std::make_shared<FullyShardedDataParallel>(model, shared_.group, std::move(options));
  } else if (shared_.use_distributed()) {
    model = std::make_shared<DistributedDataParallel>(
        model, shared_.group, DistributedDataParallelOptions{.reducer = shared_.handlers.ddp});
  }
  state_.models.push_back(model);
  return model;
}

void PreparedObjects::prepare_module(const std::shared_ptr<torch::nn::Module>& module) {
  require_object(module.get(), "a module");
  if (std::ranges::find(state_.models, module) != state_.models.end()) return;
  require_savable(*module);
  if (shared_.options.replicate.in_micro_batches() || shared_.options.fully_sharded) {
    throw UsageError::conflict(
        shared_.options.fully_sharded ? "fully_sharded" : "replicate.sums, in micro-batches",
        "a module that is no ladder::Model",
        "derive it from ladder::Model; for micro-batches override new_like() too");
  }
  std::erase_if(modules_, [&](const auto& own) { return own.module == module; });  // freed before
  if (shared_.options.device_placement) module->to(shared_.device);
  modules_.push_back(
      {module, shared_.use_distributed()
                   ? std::make_unique<GradientReducer>(*module, shared_.group, shared_.handlers.ddp)
                   : nullptr});
  state_.models.push_back(module);
}

std::shared_ptr<AcceleratedOptimizer> PreparedObjects::prepare_optimizer(
    std::shared_ptr<torch::optim::Optimizer> optimizer) {
  require_object(optimizer.get(), "an optimizer");
  for (const auto& known : *optimizers_) {
    if (&known->optimizer() == optimizer.get()) return known;
  }
  require_savable(*optimizer);
  if (shared_.options.zero_redundancy) ZeroRedundancyOptimizer(*optimizer, shared_.group);
  const auto place = make_place_for(*optimizer);
  if (place == optimizers_->size()) {
    optimizers_->emplace_back();
    state_.optimizers.emplace_back();
  }
  auto& prepared = optimizers_->at(place);
  state_.optimizers[place] = optimizer;
  prepared = std::make_shared<AcceleratedOptimizer>(
      std::move(optimizer), shared_.scaler, shared_.gradients, shared_.config.debug, shared_.group);
  return prepared;
}

// That of an optimizer of the same parameters, if nobody has what prepare returned for it: this one
// replaces it, as a new optimizer in each epoch. Its schedules make room for theirs.
std::size_t PreparedObjects::make_place_for(const torch::optim::Optimizer& optimizer) {
  const auto steps_first_of = [&](torch::optim::Optimizer& old) {
    const auto& own = optimizer.param_groups().at(0).params();
    const auto& others = old.param_groups().at(0).params();
    return !own.empty() && !others.empty() && own[0].is_same(others[0]);
  };
  for (std::size_t i = 0; i < optimizers_->size(); ++i) {
    auto& old = (*optimizers_)[i]->optimizer();
    if (optimizers_->at(i).use_count() > 1 || !steps_first_of(old)) continue;
    const auto is_its = [&](const auto& schedule) {
      return &schedule->scheduler().optimizer() == &old;
    };
    if (std::ranges::any_of(schedulers_, [&](const auto& schedule) {
          return is_its(schedule) && schedule.use_count() > 1;
        })) {
      continue;
    }
    for (std::size_t k = schedulers_.size(); k-- > 0;) {
      if (!is_its(schedulers_[k])) continue;
      auto place = k;  // as if those before it were still there
      for (const auto free : free_schedule_places_) place += free <= place ? 1 : 0;
      free_schedule_places_.insert(place);
      schedulers_.erase(schedulers_.begin() + static_cast<std::ptrdiff_t>(k));
      state_.schedulers.erase(state_.schedulers.begin() + static_cast<std::ptrdiff_t>(k));
    }
    return i;
  }
  return optimizers_->size();
}

std::shared_ptr<AcceleratedScheduler> PreparedObjects::prepare_scheduler(
    std::shared_ptr<LrScheduler> scheduler) {
  require_object(scheduler.get(), "a schedule");
  for (const auto& known : schedulers_) {
    if (&known->scheduler() == scheduler.get()) return known;
  }
  const bool batch_grows = shared_.options.data_loader.mode == LoaderMode::kPerProcess;
  const int steps = shared_.options.scheduler_steps_per_call.value_or(
      batch_grows ? shared_.group.world_size() : 1);
  if (steps > 1) {
    shared_.log.info(fmt::format(
        "each step() of the scheduler steps {} times (scheduler_steps_per_call)", steps));
  }
  auto place = std::ssize(schedulers_);
  if (!free_schedule_places_.empty()) {
    const auto first = free_schedule_places_.extract(free_schedule_places_.begin()).value();
    place = std::min(place, static_cast<std::ptrdiff_t>(first));
  }
  state_.schedulers.insert(state_.schedulers.begin() + place, scheduler);
  return *schedulers_.insert(
      schedulers_.begin() + place,
      std::make_shared<AcceleratedScheduler>(
          std::move(scheduler), optimizers_, shared_.gradients,
          AcceleratedScheduler::Options{
              .steps_per_call = steps,
              .step_with_optimizer = shared_.options.step_scheduler_with_optimizer}));
}

std::shared_ptr<AcceleratedScheduler> PreparedObjects::prepare_scheduler(
    const std::shared_ptr<torch::optim::LRScheduler>& scheduler) {
  require_object(scheduler.get(), "a schedule");
  for (const auto& known : schedulers_) {
    auto* const own = dynamic_cast<TorchLrScheduler*>(&known->scheduler());
    if (own != nullptr && own->scheduler() == scheduler) return known;
  }
  std::vector<torch::optim::Optimizer*> optimizers;
  for (const auto& optimizer : state_.optimizers) optimizers.push_back(optimizer.get());
  auto* const optimizer = optimizer_of(*scheduler, optimizers);
  if (optimizer == nullptr) {
    throw UsageError::conflict("Accelerator::prepare",
                               "a schedule of LibTorch whose optimizer is not prepared",
                               "prepare the optimizer before, or left of, its schedule");
  }
  return prepare_scheduler(
      std::shared_ptr<LrScheduler>(std::make_shared<TorchLrScheduler>(scheduler, *optimizer)));
}

AcceleratedDataLoader PreparedObjects::prepare_data_loader(DataLoader loader) {
  auto prepared = prepare_eval_loader(std::move(loader));
  const auto replaced = std::ranges::find_if(loaders_, [&](const AcceleratedDataLoader& old) {
    return old.is_only_copy() && &old.dataset() == &prepared.dataset();
  });
  if (replaced == loaders_.end()) {
    loaders_.push_back(prepared);
  } else {
    *replaced = prepared;
  }
  return prepared;
}

TrainingState PreparedObjects::state() const {
  auto state = state_;
  for (const auto& loader : loaders_) state.loaders.push_back(position_of(loader));
  return state;
}

AcceleratedDataLoader PreparedObjects::prepare_eval_loader(DataLoader loader) const {
  return {std::move(loader),
          LoaderSetup{.group = shared_.group,
                      .device = shared_.batch_device(),
                      .configuration = shared_.options.data_loader,
                      .gradients = shared_.gradients,
                      .micro_batch = shared_.options.replicate.sampler_micro_batch()}};
}

void PreparedObjects::free_memory() {
  state_.models.clear();
  std::erase_if(modules_, [](const auto& own) { return own.module.use_count() == 1; });
  state_.optimizers.clear();
  state_.schedulers.clear();
  loaders_.clear();
  optimizers_->clear();
  schedulers_.clear();
}

void PreparedObjects::free_memory(const torch::nn::Module& module) {
  std::erase_if(state_.models,
                [&](const auto& own) { return &unwrapped(*own) == &unwrapped(module); });
  std::erase_if(modules_, [&](const auto& own) {
    return own.module.get() == &module && own.module.use_count() == 1;
  });
}

void PreparedObjects::free_memory(AcceleratedOptimizer& optimizer) {
  const auto is_raw = [&](const auto& other) { return &other == &optimizer.optimizer(); };
  std::erase_if(state_.schedulers, [&](const auto& own) { return is_raw(own->optimizer()); });
  std::erase_if(schedulers_, [&](const auto& own) { return is_raw(own->scheduler().optimizer()); });
  std::erase_if(state_.optimizers, [&](const auto& own) { return is_raw(*own); });
  std::erase_if(*optimizers_, [&](const auto& own) { return own.get() == &optimizer; });
}

void PreparedObjects::free_memory(const AcceleratedDataLoader& loader) {
  std::erase_if(loaders_, [&](const auto& own) { return own.is_copy_of(loader); });
}

}  // namespace ladder
