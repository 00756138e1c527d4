// SPDX-License-Identifier: Apache-2.0
#include "ladder/graph/step_graph.h"

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/graph/device_graph.h"
#include "ladder/optim/fused_optimizer.h"

namespace ladder {

// Tensors that a replay reads and writes, at fixed addresses.
struct StepGraph::Captured {
  Batch batch;
  torch::Tensor loss;
  std::vector<torch::Tensor> parameters;
  std::vector<const void*> addresses;    // of the parameters
  std::vector<bool> trained;             // whether they required a gradient
  std::vector<torch::Tensor> gradients;  // undefined where there is none
  bool adds;                             // to gradients, if there are any before the step
  std::int64_t replacements;
  DeviceGraph graph;
};

namespace {

bool has_form_of(const torch::Tensor& a, const torch::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

// Whether a step does the same work for both.
bool has_form_of(const Batch& a, const Batch& b) {
  return std::ranges::equal(a.inputs, b.inputs,
                            [](const auto& x, const auto& y) {
                              return x.first == y.first && has_form_of(x.second, y.second);
                            }) &&
         has_form_of(a.targets, b.targets) && has_form_of(a.positions, b.positions) &&
         a.global_size == b.global_size && a.micro_batch == b.micro_batch;
}

// Memory for batches of this form. The epoch is in the positions (RandomKey), and the host cannot
// choose by the samples.
Batch empty_batch(const Batch& like, const torch::Device& device) {
  const auto empty = [&](const torch::Tensor& tensor) {
    return tensor.defined() ? torch::empty_like(tensor, tensor.options().device(device)) : tensor;
  };
  Batch batch = like;
  batch.inputs = like.inputs.map(empty);
  batch.targets = empty(like.targets);
  batch.positions = empty(like.positions);
  batch.indices = torch::Tensor();
  batch.epoch = 0;
  return batch;
}

void copy_batch(const Batch& from, Batch& to) {
  for (auto source = from.inputs.begin(), target = to.inputs.begin(); target != to.inputs.end();
       ++source, ++target) {
    target->second.copy_(source->second, /*non_blocking=*/true);
  }
  if (to.targets.defined()) to.targets.copy_(from.targets, /*non_blocking=*/true);
  if (!to.positions.defined()) return;
  const auto positions = from.positions.bitwise_and(0xFFFFFFFF).bitwise_or(from.epoch << 32);
  to.positions.copy_(positions.pin_memory(), /*non_blocking=*/true);
}

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

// The node that adds a parameter's gradient works on the stream on which it was made. A wrapper
// keeps it, from the default stream, which cannot be captured.
void require_free(const std::vector<torch::Tensor>& parameters) {
  for (const auto& parameter : parameters) {
    if (torch::autograd::impl::try_get_grad_accumulator(parameter) == nullptr) continue;
    throw UsageError::conflict(
        "StepGraph", "a parameter of a DistributedDataParallel, or of a loss that is still there",
        "train the network itself on one process, and make the graph before the first step");
  }
}

std::vector<torch::Tensor> gradients_of(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
}

bool any_defined(const std::vector<torch::Tensor>& tensors) {
  return std::ranges::any_of(tensors, [](const auto& tensor) { return tensor.defined(); });
}

UsageError adds_gradients() {
  return UsageError::conflict("StepGraph", "the step adds to the gradients of the step before",
                              "begin it with optimizer.zero_grad(), also without accumulation");
}

// While it lives, the work of this thread is on `stream`, after that of the stream before; which
// goes on after it. A default stream cannot be captured.
class OnStream {
 public:
  explicit OnStream(const c10::Stream& stream)
      : stream_(stream),
        outer_(c10::impl::VirtualGuardImpl(stream.device_type()).getStream(stream.device())) {
    let_wait(stream_, outer_);
    guard_.emplace(stream);
  }
  ~OnStream() {
    guard_.reset();
    let_wait(outer_, stream_);
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  static void let_wait(const c10::Stream& later, const c10::Stream& earlier) {
    c10::Event event(later.device_type());
    event.record(earlier);
    event.block(later);
  }

  c10::Stream stream_;
  c10::Stream outer_;
  std::optional<c10::StreamGuard> guard_;
};

// While it lives, the operators that begin are noted, of this thread and of its backward, for which
// it waits.
class LastOperator {
 public:
  LastOperator() : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&note))) {}
  ~LastOperator() { at::removeCallback(handle_); }
  LastOperator(const LastOperator&) = delete;
  LastOperator& operator=(const LastOperator&) = delete;

  static std::string& name() {
    static std::string last;
    return last;
  }

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    if (const auto known = function.operator_name()) name() = known->name;
    return nullptr;
  }

  at::CallbackHandle handle_;
};

// Converted weights in the cache of Autocast would be those of the capture.
class NoAutocastCache {
 public:
  NoAutocastCache() { at::autocast::set_autocast_cache_enabled(false); }
  ~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(before_); }
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool before_ = at::autocast::is_autocast_cache_enabled();
};

class DeviceRates {
 public:
  explicit DeviceRates(FusedOptimizer& optimizer) : optimizer_(optimizer) {
    optimizer_.use_device_rates(true);
  }
  ~DeviceRates() { optimizer_.use_device_rates(false); }
  DeviceRates(const DeviceRates&) = delete;
  DeviceRates& operator=(const DeviceRates&) = delete;

 private:
  FusedOptimizer& optimizer_;
};

// The calls of programs that read on the host, by the operator in which they do.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kHostReads = {{
    {"aten::_local_scalar_dense", "item()"},
    {"aten::copy_", "cpu(), to() or a print"},
    {"aten::equal", "equal()"},
    {"aten::nonzero", "nonzero() or an index by a mask"},
    {"aten::masked_select", "masked_select()"},
}};

UsageError not_capturable(std::string_view name, const c10::Error& error) {
  const auto* const known =
      std::ranges::find(kHostReads, name, [](const auto& read) { return read.first; });
  const auto call = known == kHostReads.end() ? name : known->second;
  const std::string_view text = error.what_without_backtrace();
  return UsageError::conflict(
      "StepGraph",
      fmt::format("the step cannot be captured: {}: {}", name, text.substr(0, text.find('\n'))),
      fmt::format("move {} out of the step, behind graph.run(), which returns the loss", call));
}

}  // namespace

StepGraph::StepGraph(const torch::Device& device, torch::optim::Optimizer& optimizer,
                     StepGraphOptions options)
    : device_(device), options_(options) {
  if (!device.is_cuda()) return;
  const c10::impl::VirtualGuardImpl gpus(device.type());
  if (!device.has_index()) device_ = gpus.getDevice();
  if (options.warmup_steps < 1) {
    throw UsageError::out_of_range("StepGraph warmup_steps", options.warmup_steps, "a number >= 1",
                                   "the default is 3");
  }
  optimizer_ = dynamic_cast<FusedOptimizer*>(&optimizer);
  if (optimizer_ == nullptr) {
    throw UsageError::conflict("StepGraph", "an optimizer that keeps numbers on the host",
                               "use Adam, AdamW or SGD of ladder/optim/");
  }
  optimizer_->use_device_rates(false);  // or its reason why not
  require_free(parameters_of(optimizer));
  stream_ = gpus.getStreamFromGlobalPool(device_);
}

StepGraph::~StepGraph() = default;

torch::Tensor StepGraph::run(const Batch& batch, const Step& step) {
  if (optimizer_ == nullptr) return step(batch);
  if (batch.world_size > 1) {
    throw UsageError::conflict("StepGraph",
                               fmt::format("a batch that {} ranks share", batch.world_size),
                               "run steps of several ranks without a graph");
  }
  if (captured_ && !is_current()) {
    captured_.reset();
    warmed_up_ = 0;
  }
  if (captured_) {
    if (!has_form_of(batch, captured_->batch)) return run_without_graph(batch, step);
    if (captured_->adds && any_defined(gradients_of(captured_->parameters))) {
      throw adds_gradients();
    }
    return replay(batch);
  }
  if (warmed_up_ > 0 && !has_form_of(batch, last_)) warmed_up_ = 0;
  if (warmed_up_ == options_.warmup_steps) {
    capture(batch, step);
    return replay(batch);
  }
  ++warmed_up_;
  last_ = batch;
  return run_without_graph(batch, step);
}

bool StepGraph::is_current() const {
  for (std::size_t i = 0; i < captured_->parameters.size(); ++i) {
    const auto& parameter = captured_->parameters[i];
    if (parameter.const_data_ptr() != captured_->addresses[i]) return false;
    if (parameter.requires_grad() != captured_->trained[i]) return false;
  }
  return captured_->replacements == optimizer_->replacements();
}

torch::Tensor StepGraph::run_without_graph(const Batch& batch, const Step& step) {
  const OnStream on_stream(*stream_);
  return step(batch.to(device_)).detach();
}

void StepGraph::capture(const Batch& batch, const Step& step) {
  last_ = {};
  const DeviceRates rates(*optimizer_);
  const OnStream on_stream(*stream_);
  auto memory = empty_batch(batch, device_);
  copy_batch(batch, memory);  // a GPU does not read it in a capture, its stand-in does
  c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  const NoAutocastCache no_cache;
  const LastOperator last_operator;
  std::unique_ptr<Captured> captured(new Captured{.batch = std::move(memory),
                                                  .loss = {},
                                                  .parameters = parameters_of(*optimizer_),
                                                  .addresses = {},
                                                  .trained = {},
                                                  .gradients = {},
                                                  .adds = false,
                                                  .replacements = optimizer_->replacements(),
                                                  .graph = DeviceGraph(device_)});
  const auto rates_before = rates_of(*optimizer_);
  const auto gradients_before = gradients_of(captured->parameters);
  captured->adds = !any_defined(gradients_before);
  try {
    captured->loss = step(captured->batch).detach();
    captured->graph.end();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    throw not_capturable(LastOperator::name(), error);
  }
  if (rates_of(*optimizer_) != rates_before) {
    throw UsageError::conflict(
        "StepGraph", "the step changes the learning rate",
        "move scheduler.step() behind graph.run(): a replay has no host code");
  }
  captured->gradients = gradients_of(captured->parameters);
  for (std::size_t i = 0; i < captured->parameters.size(); ++i) {
    const auto& before = gradients_before[i];
    if (before.defined() && before.is_same(captured->gradients[i])) throw adds_gradients();
    captured->addresses.push_back(captured->parameters[i].const_data_ptr());
    captured->trained.push_back(captured->parameters[i].requires_grad());
  }
  captured_ = std::move(captured);
}

torch::Tensor StepGraph::replay(const Batch& batch) {
  copy_batch(batch, captured_->batch);
  optimizer_->send_rates();
  captured_->graph.replay();
  for (std::size_t i = 0; i < captured_->parameters.size(); ++i) {
    captured_->parameters[i].mutable_grad() = captured_->gradients[i];
  }
  ++replays_;
  return captured_->loss.clone();
}

}  // namespace ladder
