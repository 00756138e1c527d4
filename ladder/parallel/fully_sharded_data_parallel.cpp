// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/fully_sharded_data_parallel.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <utility>

#include "ladder/amp/precision.h"
#include "ladder/comm/c10d_group.h"
#include "ladder/core/error.h"
#include "ladder/core/tensor_form.h"
#include "ladder/optim/network_part.h"
#include "ladder/parallel/averaged_gradient.h"
#include "ladder/parallel/flat_layout.h"
#include "ladder/parallel/replica_check.h"

namespace ladder {
namespace {

constexpr const char* kFsdp = "FullyShardedDataParallel";

// Gives the memory of `tensor` back, or gets it again. Tensors that share it see both: what a
// forward has saved for its backward is valid once the values are the same.
void set_allocated(const torch::Tensor& tensor, bool on) {
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto bytes = on ? static_cast<std::size_t>(tensor.numel()) * tensor.itemsize() : 0;
  storage->set_data_ptr_noswap(on ? storage->allocator()->allocate(bytes)
                                  : at::DataPtr(nullptr, storage->device()));
  storage->set_nbytes(bytes);
}

// For StepTrace.
struct Recorded : at::RecordFunction {
  explicit Recorded(const std::string& name) : RecordFunction(at::RecordScope::USER_SCOPE) {
    if (isActive()) before(name);
  }
};

}  // namespace

// What the units share.
struct FullyShardedDataParallel::Run {
  ProcessGroup group;
  FullyShardedOptions options;
  std::shared_ptr<int> pauses = std::make_shared<int>(0);  // NoSync in effect
  std::vector<Unit*> begun;                                // in the order of the first forward
  std::vector<Unit*> ended;
  std::int64_t whole_bytes = 0;
  std::int64_t most_whole_bytes = 0;
  int backward = -1;   // the engine's number of the last one
  int inside = 0;      // inner units that compute
  bool holds = false;  // unshard() is in effect
  bool holds_for_evaluation = false;

  bool is_held() const { return holds || holds_for_evaluation; }

  void count(std::int64_t bytes) {
    whole_bytes += bytes;
    if (!is_held()) most_whole_bytes = std::max(most_whole_bytes, whole_bytes);
  }
};

class FullyShardedDataParallel::Unit : public std::enable_shared_from_this<Unit> {
 public:
  Unit(std::string name, const std::vector<NamedTensor>& parameters, std::shared_ptr<Run> run)
      : name_(std::move(name)), run_(std::move(run)) {
    const torch::NoGradGuard no_grad;
    const PlainViews plain;
    std::int64_t elements = 0;
    for (const auto& [tensor, names] : parameters) elements += aligned(tensor.numel());
    share_ = aligned((elements + world_size() - 1) / world_size());
    const auto like = parameters.front().tensor.options().requires_grad(false);
    shard_ = torch::zeros({share_}, like);
    whole_ =
        torch::empty({share_ * world_size()}, like.dtype(dtype_of(run_->options.param_precision)));
    std::int64_t offset = 0;
    for (const auto& [tensor, names] : parameters) {
      places_.push_back(place_of(tensor, names.front(), offset));
      offset += aligned(tensor.numel());
      const auto& place = places_.back();
      place.part.copy_(in_memory_order(tensor).narrow(0, place.begin, place.part.numel()));
      tensor.set_data(place.part);
    }
    set_allocated(whole_, false);
  }

  UnitSizes sizes() const { return {name_, share_, share_ * world_size()}; }
  const std::string& name() const { return name_; }
  bool was_called() const { return was_called_; }
  void begin_pass() {
    was_called_ = false;
    drop_prefetched();
  }

  // Of a unit that the pass did not use: the next step changes its shard.
  void drop_prefetched() {
    if (!gather_) return;
    finish_gather();
    free_whole();
  }

  Inputs before_forward(const Inputs& inputs) {
    was_called_ = true;
    note_order(run_->begun);
    unshard();
    prefetch(run_->begun, /*next=*/1);
    if (!torch::GradMode::is_enabled()) return inputs;
    return reduced_after_backward(inputs);
  }

  torch::Tensor after_forward(const torch::Tensor& output, bool is_outermost) {
    note_order(run_->ended);
    const bool has_backward = torch::GradMode::is_enabled() && output.requires_grad();
    if (has_backward) {
      output.register_hook([own = shared_from_this()](const torch::Tensor& /*gradient*/) {
        own->before_backward();
      });
    }
    const bool stays = has_backward && !run_->options.reshard_after_forward.value_or(!is_outermost);
    if (!stays) reshard();
    return output;
  }

  // The end of the backward of this unit: its shard of the average.
  void reduce() {
    if (!std::exchange(in_backward_, false)) return;
    const torch::NoGradGuard no_grad;
    const PlainViews plain;
    if (*run_->pauses > 0) return keep_sums();
    if (has_gradients()) {
      const Recorded recorded("reduce_scatter " + name_);
      const auto bytes = share_ * world_size() * static_cast<std::int64_t>(sizeof(float));
      run_->count(bytes);  // of the gradients
      if (!run_->is_held()) divide();
      run_->count(bytes);
      auto flat = torch::empty({world_size() * share_}, shard_.options());  // no one reads padding
      for (auto& place : places_) divide_gradient(place, flat);
      run_->count(-bytes);
      auto own = torch::empty_like(shard_);
      run_collective(run_->group, "reduce_scatter",
                     [&] { c10d_group(run_->group)->_reduce_scatter_base(own, flat)->wait(); });
      run_->count(-bytes);
      for (auto& place : places_) {
        const auto part = place.part_in(own);
        if (!place.parameter.requires_grad() || part.numel() == 0) continue;
        place.gradient = place.gradient.defined() ? place.gradient.add_(part) : part;
      }
    }
    show_gradients();
    reshard();
  }

  void unshard() {
    if (is_whole_) return;
    start_gather();
    const torch::NoGradGuard no_grad;
    const PlainViews plain;
    finish_gather();
    for (auto& place : places_) place.parameter.set_data(place.whole);
    is_whole_ = true;
  }

  // Unless it has gradients of this rank, of a no_sync.
  void reshard() {
    if (!is_whole_ || run_->is_held()) return;
    if (is_hidden_ && std::ranges::any_of(places_, [](const auto& place) {
          return place.parameter.grad().defined();
        })) {
      return;
    }
    divide();
    show_gradients();
  }

 private:
  // A parameter, and the two forms that it has. Both have its mark, which set_data copies.
  struct Place {
    torch::Tensor parameter;
    std::string name;
    torch::Tensor whole;          // in `whole_`
    torch::Tensor part;           // of this rank, in `shard_`
    std::int64_t begin;           // of the part, in the parameter
    std::int64_t shard_begin;     // of the part, in the shard
    torch::Tensor gradient = {};  // of the part, while the parameter is whole

    torch::Tensor part_in(const torch::Tensor& shard) const {
      return shard.narrow(0, shard_begin, part.numel());
    }
    torch::Tensor whole_in(const torch::Tensor& flat) const {
      return flat.as_strided(whole.sizes(), whole.strides(), whole.storage_offset());
    }
  };

  Place place_of(const torch::Tensor& parameter, const std::string& name,
                 std::int64_t offset) const {
    const auto shard = run_->group.rank() * share_, numel = parameter.numel();
    const auto begin = std::clamp<std::int64_t>(shard - offset, 0, numel);
    const auto end = std::clamp<std::int64_t>(shard + share_ - offset, 0, numel);
    const auto shard_begin = end > begin ? offset + begin - shard : 0;
    Place place{parameter,
                name,
                whole_.as_strided(parameter.sizes(), parameter.strides(), offset),
                shard_.narrow(0, shard_begin, end - begin),
                begin,
                shard_begin};
    for (const bool is_whole : {false, true}) {
      mark_as_part({is_whole ? place.whole : place.part}, run_->group,
                   ShardOfParameter{parameter.sizes().vec(), parameter.strides().vec(), begin,
                                    end - begin, is_whole});
    }
    return place;
  }

  // Of earlier steps, while a backward computes whole ones.
  void hide_gradients() {
    if (std::exchange(is_hidden_, true)) return;
    for (auto& place : places_) {
      place.gradient = std::exchange(place.parameter.mutable_grad(), torch::Tensor());
    }
  }
  void show_gradients() {
    if (!std::exchange(is_hidden_, false)) return;
    for (auto& place : places_) {
      place.parameter.mutable_grad() = std::exchange(place.gradient, torch::Tensor());
    }
  }

  // The sums of a no_sync, in float32.
  void keep_sums() {
    for (auto& place : places_) {
      auto& gradient = place.parameter.mutable_grad();
      if (gradient.defined()) gradient = gradient.to(torch::kFloat32);
    }
  }

  void divide() {
    const Recorded recorded("reshard " + name_);
    const PlainViews plain;
    for (auto& place : places_) place.parameter.set_data(place.part);
    free_whole();
    is_whole_ = false;
  }

  // Does nothing if it has no memory.
  void free_whole() {
    if (whole_.storage().nbytes() == 0) return;
    set_allocated(whole_, false);
    run_->count(-whole_bytes());
  }

  int world_size() const { return run_->group.world_size(); }
  std::int64_t whole_bytes() const {
    return whole_.numel() * static_cast<std::int64_t>(whole_.itemsize());
  }

  void note_order(std::vector<Unit*>& order) {
    if (std::ranges::find(order, this) == order.end()) order.push_back(this);
  }

  // Of the unit that comes after this one in `order`, or before it.
  void prefetch(const std::vector<Unit*>& order, std::ptrdiff_t next) {
    if (!run_->options.prefetch || is_synchronous(run_->group)) return;
    const auto other = std::ranges::find(order, this) - order.begin() + next;
    if (other < 0 || other >= static_cast<std::ptrdiff_t>(order.size())) return;
    order[static_cast<std::size_t>(other)]->start_gather();
  }

  void start_gather() {
    if (is_whole_ || gather_) return;
    const torch::NoGradGuard no_grad;
    const PlainViews plain;
    const Recorded recorded("all_gather " + name_);
    set_allocated(whole_, true);
    run_->count(whole_bytes());
    sent_ = shard_.to(whole_.scalar_type());
    run_collective(run_->group, "all_gather",
                   [&] { gather_ = c10d_group(run_->group)->_allgather_base(whole_, sent_); });
  }

  void finish_gather() {
    if (gather_) run_collective(run_->group, "all_gather", [&] { gather_->wait(); });
    gather_.reset();
    sent_.reset();
  }

  // Inputs whose gradients are the last that a backward of this unit computes.
  Inputs reduced_after_backward(const Inputs& inputs) {
    const auto missing = std::make_shared<std::int64_t>(0);
    return inputs.map([&](const torch::Tensor& input) {
      if (!input.requires_grad()) return input;
      const auto own = input.view_as(input);
      ++*missing;
      own.register_hook([unit = shared_from_this(), missing](const torch::Tensor& /*gradient*/) {
        if (--*missing == 0) unit->reduce();
      });
      return own;
    });
  }

  void before_backward() {
    const int backward = torch::autograd::get_current_graph_task_id();
    if (std::exchange(run_->backward, backward) != backward) {
      // Units whose inputs need no gradient, in the order of a backward.
      torch::autograd::Engine::get_default_engine().queue_callback([run = run_] {
        for (auto unit = run->ended.rbegin(); unit != run->ended.rend(); ++unit) (*unit)->reduce();
        for (auto* unit : run->begun) unit->drop_prefetched();
      });
    }
    in_backward_ = true;
    unshard();
    hide_gradients();
    prefetch(run_->ended, /*next=*/-1);
  }

  bool has_gradients() const {
    std::vector<std::string> missing;
    std::size_t trained = 0;
    for (const auto& place : places_) {
      if (!place.parameter.requires_grad()) continue;
      ++trained;
      if (!place.parameter.grad().defined()) missing.push_back(place.name);
    }
    if (missing.empty() || missing.size() == trained) return missing.size() < trained;
    throw UsageError::conflict(
        kFsdp, fmt::format("no gradient for {}", fmt::join(missing, ", ")),
        "use each parameter of a unit in its forward, or freeze it: set_requires_grad(false)");
  }

  void divide_gradient(Place& place, const torch::Tensor& flat) const {
    auto gradient = std::exchange(place.parameter.mutable_grad(), torch::Tensor());
    if (!place.parameter.requires_grad()) return;
    require_dense_gradient(kFsdp, place.name, gradient);
    auto part = place.whole_in(flat);
    const auto factor = c10::scalar_to_tensor(1.0 / world_size());
    if (gradient.scalar_type() == part.scalar_type()) {
      at::mul_out(part, gradient, factor);  // as c10d's reducer
    } else {
      part.copy_(gradient).mul_(factor);
    }
  }

  std::string name_;
  std::shared_ptr<Run> run_;
  std::vector<Place> places_;
  std::int64_t share_ = 0;  // elements of a rank
  torch::Tensor shard_;     // float32
  torch::Tensor whole_;     // has memory only while the unit is whole
  torch::Tensor sent_;      // the shard, in the dtype of `whole_`, while it is gathered
  c10::intrusive_ptr<c10d::Work> gather_;
  bool is_whole_ = false;
  bool is_hidden_ = false;  // the gradients of parts
  bool in_backward_ = false;
  bool was_called_ = false;
};

namespace {

// The Models that are units, by their name; "" is the network.
std::map<std::string, Model*> unit_models(const torch::nn::Module& network,
                                          const FullyShardedOptions& options) {
  std::map<std::string, Model*> all;
  for (const auto& item : network.named_modules("", /*include_self=*/false)) {
    if (auto* const model = dynamic_cast<Model*>(item.value().get())) {
      if (!model->parameters().empty()) all.emplace(item.key(), model);
    }
  }
  if (!options.units) return all;
  std::map<std::string, Model*> chosen;
  for (const auto& name : *options.units) {
    const auto found = all.find(name);
    if (found == all.end()) {
      throw UsageError::missing("units", fmt::format("a Model with parameters named {}", name),
                                "derive the layer from ladder::Model, register it under this "
                                "name, and call it as (*layer)(inputs)");
    }
    chosen.insert(*found);
  }
  return chosen;
}

// The innermost unit of a parameter.
std::string unit_of(const std::string& parameter, const std::map<std::string, Model*>& models) {
  std::string unit;
  for (const auto& [name, model] : models) {
    if (parameter.starts_with(name + ".") && name.size() > unit.size()) unit = name;
  }
  return unit;
}

std::map<std::string, std::vector<NamedTensor>> parameters_by_unit(
    const torch::nn::Module& network, const std::map<std::string, Model*>& models) {
  std::map<std::string, std::vector<NamedTensor>> result;
  for (const auto& item : unique_tensors(network.named_parameters())) {
    const auto unit = unit_of(item.names.front(), models);
    for (const auto& name : item.names) {
      if (unit_of(name, models) == unit) continue;
      throw UsageError::conflict(
          kFsdp, fmt::format("two units share a parameter: {} and {}", item.names.front(), name),
          "name a module that has both in `units`, or none of the two");
    }
    result[unit].push_back(item);
  }
  return result;
}

}  // namespace

FullyShardedDataParallel::FullyShardedDataParallel(std::shared_ptr<Model> module,
                                                   ProcessGroup group, FullyShardedOptions options)
    : ReplicatedModel(std::move(module)),
      run_(std::make_shared<Run>(Run{.group = std::move(group), .options = std::move(options)})) {
  const auto& network = module_->unwrapped();
  const auto models = unit_models(network, run_->options);
  const auto by_unit = parameters_by_unit(network, models);
  require_same_parameters(*module_, run_->group);
  broadcast_replica(*module_, run_->group);
  if (run_->group.world_size() == 1) {
    mark_whole();
    return;
  }
  for (const auto& [name, parameters] : by_unit) {
    for (const auto& parameter : parameters) {
      TensorForm{.dtype = torch::kFloat32, .device = by_unit.begin()->second[0].tensor.device()}
          .require(parameter.tensor, kFsdp,
                   "build the network in float32 on one device; param_precision is for 16 bits");
      marks_.push_back(AveragedGradient::mark(parameter.tensor, network, run_->group));
    }
  }
  for (const auto& [name, parameters] : by_unit) {
    auto unit = std::make_shared<Unit>(name, parameters, run_);
    units_.push_back(unit);
    if (name.empty()) {
      outermost_ = unit;
    } else {
      models.at(name)->register_forward_hooks({[unit, run = run_](const Inputs& inputs) {
                                                 ++run->inside;
                                                 return unit->before_forward(inputs);
                                               },
                                               [unit, run = run_](const torch::Tensor& output) {
                                                 --run->inside;
                                                 return unit->after_forward(output, false);
                                               }});
    }
  }
}

// For checkpoints of several ranks.
void FullyShardedDataParallel::mark_whole() {
  for (const auto& parameter : module_->parameters()) {
    mark_as_part({parameter}, run_->group,
                 ShardOfParameter{parameter.sizes().vec(), parameter.strides().vec(), 0,
                                  parameter.numel(), /*is_whole=*/true});
  }
}

torch::Tensor FullyShardedDataParallel::forward(const Inputs& inputs) {
  RECORD_USER_SCOPE("FullyShardedDataParallel.forward");  // for StepTrace
  run_->inside = 0;
  for (const auto& unit : units_) unit->begin_pass();
  const auto dtype = units_.empty() ? torch::kFloat32 : dtype_of(run_->options.param_precision);
  auto own = inputs.map([&](const torch::Tensor& tensor) {
    const bool converts = tensor.is_floating_point() && dtype != torch::kFloat32;
    return converts ? tensor.to(dtype) : tensor;
  });
  if (outermost_) own = outermost_->before_forward(own);
  auto output = call(own);
  if (outermost_) output = outermost_->after_forward(output, true);
  return dtype == torch::kFloat32 ? output : at_least_float32(output);
}

torch::Tensor FullyShardedDataParallel::call(const Inputs& inputs) {
  try {
    return module_->forward(inputs);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    if (run_->inside > 0) throw;
    for (const auto& unit : units_) {
      if (unit->was_called()) continue;
      throw UsageError::conflict(
          kFsdp,
          fmt::format("the network used parameters of {}, which was not called: {}", unit->name(),
                      error.what_without_backtrace()),
          "call a unit as (*layer)(inputs), not layer->forward(inputs), and use its parameters in "
          "its own forward alone");
    }
    throw;
  }
}

void FullyShardedDataParallel::train(bool on) {
  Model::train(on);
  if (units_.empty()) return;
  if (on) {
    run_->holds_for_evaluation = false;
    reshard_all();
    return;
  }
  run_->holds_for_evaluation = true;
  for (const auto& unit : units_) unit->unshard();
  broadcast_buffers(*module_, run_->group);
}

GradientReducer::NoSync FullyShardedDataParallel::no_sync(bool when) {
  return {run_->pauses, when};
}

void FullyShardedDataParallel::unshard() {
  run_->holds = true;
  for (const auto& unit : units_) unit->unshard();
}

void FullyShardedDataParallel::reshard() {
  run_->holds = false;
  reshard_all();
}

void FullyShardedDataParallel::reshard_all() {
  for (const auto& unit : units_) unit->reshard();
}

std::int64_t FullyShardedDataParallel::most_whole_bytes() const { return run_->most_whole_bytes; }

std::vector<FullyShardedDataParallel::UnitSizes> FullyShardedDataParallel::units() const {
  std::vector<UnitSizes> sizes;
  for (const auto& unit : units_) sizes.push_back(unit->sizes());
  return sizes;
}

}  // namespace ladder
