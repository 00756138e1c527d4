// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/gradient_reducer.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/utils.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "ladder/comm/c10d_group.h"
#include "ladder/core/error.h"
#include "ladder/nn/model.h"
#include "ladder/parallel/averaged_gradient.h"
#include "ladder/parallel/flat_layout.h"
#include "ladder/parallel/replica_check.h"

namespace ladder {
namespace {

constexpr const char* kDdp = "DistributedDataParallel";
constexpr double kBytesPerMib = 1024.0 * 1024.0;

// The trained parameters, each once, with their names.
struct Trained {
  std::vector<torch::Tensor> tensors;
  std::vector<std::string> names;
};

// Compares the ranks first, before an error that only some of them would have.
Trained trained_parameters(const torch::nn::Module& module, const ProcessGroup& group) {
  require_same_parameters(module, group);
  Trained trained;
  for (const auto& item : unique_tensors(module.named_parameters())) {
    if (!item.tensor.requires_grad()) continue;
    trained.tensors.push_back(item.tensor);
    trained.names.push_back(item.names.front());
  }
  return trained;
}

// A parameter as it was at construction.
struct Role {
  torch::Tensor tensor;
  std::string name;
  bool is_trained;
  std::vector<std::int64_t> strides;
  std::shared_ptr<torch::autograd::Node> accumulator;  // has the reducer's hook; null if frozen
};

std::shared_ptr<torch::autograd::Node> accumulator_of(const torch::Tensor& tensor) {
  return tensor.requires_grad() ? torch::autograd::impl::grad_accumulator(tensor) : nullptr;
}

std::vector<Role> roles_in(const torch::nn::Module& module) {
  std::vector<Role> roles;
  for (const auto& item : module.named_parameters()) {
    const auto& tensor = item.value();
    roles.push_back({tensor, item.key(), tensor.requires_grad(), tensor.strides().vec(),
                     accumulator_of(tensor)});
  }
  return roles;
}

void require_unchanged(const std::vector<Role>& roles, bool may_freeze) {
  for (const auto& [tensor, name, is_trained, strides, accumulator] : roles) {
    const bool frozen = is_trained && may_freeze && !tensor.requires_grad();
    const bool same_role = frozen || tensor.requires_grad() == is_trained;
    const bool same_node = frozen || !same_role || accumulator_of(tensor) == accumulator;
    if (same_role && same_node && tensor.strides() == strides) continue;
    throw UsageError::conflict(
        kDdp,
        fmt::format("{} of {} changed after construction",
                    !same_role ? "requires_grad"
                    : !same_node
                        ? "the node of the gradient (loading an archive, or to(), replaces it)"
                        : "strides",
                    name),
        same_role
            ? "load weights, choose device, dtype and memory format first, then wrap the model"
            : "make a new wrapper for each phase of freezing; or wrap the model unfrozen, with "
              "find_unused_parameters = true, and freeze then");
  }
}

[[noreturn]] void refuse_inner_backward() {
  throw UsageError::conflict(
      kDdp, "a backward within a backward, as of re-entrant gradient checkpointing",
      "call torch::autograd::grad in the checkpoint's backward, for its inputs and parameters, and "
      "return the gradients");
}

// From LibTorch 2.11 on, a last argument lists the sizes of single buckets: none.
template <typename Engine, typename... Arguments>
std::shared_ptr<Engine> make_engine(const Arguments&... arguments) {
  using Sizes = std::vector<std::int64_t>;
  if constexpr (std::is_constructible_v<Engine, const Arguments&..., Sizes>) {
    return std::make_shared<Engine>(arguments..., Sizes());
  } else {
    return std::make_shared<Engine>(arguments...);
  }
}

std::shared_ptr<c10d::Reducer> make_reducer(const Trained& trained, const C10dGroup& group,
                                            const GradientReducerOptions& options) {
  std::int64_t cap = c10d::kDefaultBucketBytesCap;
  std::int64_t first_cap = c10d::kDefaultFirstBucketBytes;
  if (options.bucket_cap_mb) {
    constexpr double kMost = 1e6;
    const double mebibytes = *options.bucket_cap_mb;
    if (!(mebibytes > 0.0 && mebibytes <= kMost)) {
      throw UsageError::out_of_range("bucket_cap_mb", mebibytes, "above 0, at most 1000000 MiB",
                                     "unset is 25");
    }
    cap = static_cast<std::int64_t>(*options.bucket_cap_mb * kBytesPerMib);
    first_cap = cap;
  }
  // The last layers first, in the order of backward. Buckets that will be rebuilt after the first
  // step start as one, as in Python.
  std::vector<std::size_t> caps = {std::numeric_limits<std::size_t>::max()};
  if (options.find_unused_parameters) {
    caps = {static_cast<std::size_t>(first_cap), static_cast<std::size_t>(cap)};
  }
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(trained.tensors, caps));
  std::reverse(buckets.begin(), buckets.end());
  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < trained.names.size(); ++i) names[i] = trained.names[i];
  const PlainViews plain;
  return make_engine<c10d::Reducer>(
      trained.tensors, buckets, group, std::vector<bool>(trained.tensors.size(), false), cap,
      options.find_unused_parameters, options.gradient_as_bucket_view, names, first_cap,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false);
}

// A CommHook as c10d requires it: starts the all-reduce and returns its future.
class ReducerHook : public c10d::CppCommHookInterface<C10dGroup> {
 public:
  ReducerHook(C10dGroup group, CommHook hook)
      : CppCommHookInterface(std::move(group)), hook_(std::move(hook)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    std::vector<torch::Tensor> sent = {hook_.encode(bucket.getBuffer(), state_->getSize())};
    const auto like = bucket.getBuffer();
    const auto decode = [decode = hook_.decode, like](c10::ivalue::Future& done) {
      const auto average = decode(done.value().toTensorVector().front());
      if (!average.defined() || average.numel() != like.numel()) {
        throw UsageError::out_of_range("CommHook::decode", average.defined() ? average.numel() : 0,
                                       fmt::format("{} elements, as the bucket has", like.numel()),
                                       "return one number per gradient");
      }
      // c10d reads its memory from the beginning: a view of a part is copied.
      const bool is_view = average.storage_offset() != 0 || !average.is_contiguous();
      return c10::IValue(
          (is_view ? average.clone(at::MemoryFormat::Contiguous) : average).to(like.scalar_type()));
    };
    return state_->allreduce(sent)->getFuture()->then(decode, c10::TensorType::get());
  }

 private:
  CommHook hook_;
};

}  // namespace

// Prepares and checks each backward. Shared with hooks on the parameters, which may outlive the
// reducer.
struct GradientReducer::Impl : public std::enable_shared_from_this<Impl> {
  enum class Expects { kNothing, kLocalSum, kAverage };

  Impl(torch::nn::Module& trained_module, ProcessGroup process_group,
       GradientReducerOptions reducer_options)
      : module(trained_module),
        group(std::move(process_group)),
        options(std::move(reducer_options)),
        trained(trained_parameters(module, group)),
        roles(roles_in(module)),
        seen(trained.tensors.size(), false) {}

  // A rank alone has nothing to average: its gradients stay where backward puts them.
  bool exchanges() const { return group.world_size() > 1 || options.comm_hook; }

  // Before the forward that the caller announces, or else in the backward.
  void begin() {
    if (is_open && running.expired()) {
      throw UsageError::conflict(
          kDdp, "the backward before failed, when a part of the gradients was averaged",
          "to go on after an exception of a backward, make a new wrapper, and call zero_grad()");
    }
    require_unchanged(roles, options.find_unused_parameters);
    if (*pauses == 0 && exchanges()) reducer->prepare_for_forward();
    if (rebuild_buckets()) share_buckets();
    const std::int64_t interval = options.check_replicas;
    if (interval > 0 && forwards++ % interval == 0) require_equal_parameters(module, group);
  }

  bool rebuild_buckets() const {
    const PlainViews plain;
    return reducer->rebuild_buckets();
  }

  void share_buckets() const {
    if (options.comm_hook) return;  // sends other tensors
    std::vector<torch::Tensor> buckets;
    for (auto& bucket : reducer->get_grad_buckets(/*return_zero_tensors=*/false)) {
      buckets.push_back(bucket.getBuffer());
    }
    run_collective(group, "share memory", [&] { share_memory(group, buckets); });
  }

  void expect_backward(const std::vector<torch::Tensor>& outputs) {
    expects = *pauses == 0 ? Expects::kAverage : Expects::kLocalSum;
    if (*pauses == 0 && exchanges()) reducer->prepare_for_backward(outputs);
  }

  // Whether the gradient is a result of torch::autograd::grad, and none of the parameter's grad().
  bool goes_to_caller(std::size_t index) const {
    const auto& nodes = *torch::autograd::get_current_graph_task_exec_info();
    const auto node = nodes.find(accumulator_of(trained.tensors[index]).get());
    return node != nodes.end() && node->second.captures_ != nullptr;
  }

  // Called from several threads if the parameters are on several devices.
  void gradient_arrived(std::size_t index, const torch::Tensor& gradient) {
    if (goes_to_caller(index)) return;
    require_dense_gradient(kDdp, trained.names[index], gradient);
    const std::lock_guard lock(mutex);
    const int backward = torch::autograd::get_current_graph_task_id();
    if (std::exchange(in_backward, backward) != backward) {
      if (!std::exchange(is_announced, false)) begin_unannounced();
      if (expects == Expects::kAverage && group.world_size() > 1) local.note();
      std::fill(seen.begin(), seen.end(), false);
      const auto end = std::make_shared<std::function<void()>>(
          [self = shared_from_this()] { self->end_backward(); });
      running = end;
      is_open = expects == Expects::kAverage && exchanges();
      torch::autograd::Engine::get_default_engine().queue_callback([end] { (*end)(); });
    }
    seen[index] = true;
  }

  void begin_unannounced() {
    if (expects == Expects::kAverage && !running.expired()) refuse_inner_backward();
    if (options.find_unused_parameters) {
      throw UsageError::conflict(
          kDdp,
          "find_unused_parameters, and a backward whose forward did not go through the wrapper",
          "call reducer.forward([&] { return module.forward(input); }), or after_forward with the "
          "loss, which is where the search for unused parameters begins");
    }
    begin();
    expect_backward({});
    sends_buffers = options.broadcast_buffers;
  }

  void end_backward() {
    is_open = false;
    const auto expected = std::exchange(expects, Expects::kNothing);
    if (expected != Expects::kAverage) return;
    if (!options.find_unused_parameters) require_all_seen();
    local.compare(&module, group);
    if (options.check_replicas == 0) drift.compare(trained.tensors, trained.names, group);
    if (std::exchange(sends_buffers, false)) broadcast_buffers();
  }

  void require_all_seen() const {
    std::vector<std::string> unused;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      if (!seen[i]) unused.push_back(trained.names[i]);
    }
    if (unused.empty()) return;
    if (torch::autograd::get_current_node() != nullptr) refuse_inner_backward();
    throw DistributedError::of(
        "backward", "a gradient for every parameter",
        fmt::format("none for {}", fmt::join(unused, ", ")),
        "remove unused parameters from the model, or set find_unused_parameters");
  }

  void broadcast_buffers() const { ladder::broadcast_buffers(module, group); }

  bool is_frozen() const {
    return std::ranges::none_of(trained.tensors, &torch::Tensor::requires_grad);
  }

  torch::nn::Module& module;
  ProcessGroup group;
  GradientReducerOptions options;
  Trained trained;
  std::vector<Role> roles;
  std::vector<std::shared_ptr<void>> hooks;  // one per parameter
  LocalLeaves local;
  DriftWatch drift;
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;  // the reducer calls it, unchecked, if the unused
                                         // parameters are others than before
  // NoSync in effect
  std::shared_ptr<int> pauses = std::make_shared<int>(0);
  bool buffers_before_forward = false;
  bool sync_buffers = true;  // as in Python, false in the forward after a no_sync one
  std::int64_t forwards = 0;

  std::mutex mutex;
  std::vector<bool> seen;
  Expects expects = Expects::kNothing;
  bool is_announced = false;                           // by after_forward
  bool is_open = false;                                // a backward that averages has begun
  bool sends_buffers = false;                          // at the end of this backward
  int in_backward = -1;                                // the engine's number of the last backward
  std::weak_ptr<const std::function<void()>> running;  // its end, until it has failed or ended
};

GradientReducer::GradientReducer(torch::nn::Module& module, ProcessGroup group,
                                 GradientReducerOptions options)
    : impl_(std::make_shared<Impl>(module, std::move(group), std::move(options))) {
  broadcast_replica(module, impl_->group);
  if (impl_->trained.tensors.empty()) return;  // such as a teacher: nothing to average
  for (std::size_t i = 0; i < impl_->trained.tensors.size(); ++i) {
    impl_->hooks.push_back(AveragedGradient::mark(
        impl_->trained.tensors[i], module, impl_->group,
        [impl = std::weak_ptr(impl_), i](const torch::Tensor& gradient) {
          if (const auto reducer = impl.lock()) reducer->gradient_arrived(i, gradient);
        },
        /*allows_others=*/!impl_->options.gradient_as_bucket_view));
  }
  const auto c10d = c10d_group(impl_->group);
  impl_->reducer = make_reducer(impl_->trained, c10d, impl_->options);
  impl_->logger = std::make_shared<c10d::Logger>(impl_->reducer);
  impl_->reducer->set_logger(impl_->logger);
  if (!impl_->reducer->should_rebuild_buckets()) impl_->share_buckets();
  const auto& hook = impl_->options.comm_hook;
  if (hook) impl_->reducer->register_comm_hook(std::make_unique<ReducerHook>(c10d, *hook));
}

GradientReducer::~GradientReducer() { impl_->hooks.clear(); }

GradientReducer::NoSync GradientReducer::no_sync(bool when) { return {impl_->pauses, when}; }

void GradientReducer::before_forward() {
  if (!torch::GradMode::is_enabled() || impl_->is_frozen()) return;
  impl_->begin();
  if (impl_->buffers_before_forward && impl_->sync_buffers) broadcast_buffers();
}

void GradientReducer::after_forward(std::vector<torch::Tensor> outputs) {
  if (!torch::GradMode::is_enabled() || impl_->is_frozen()) return;
  std::erase_if(outputs, [](const auto& output) { return !output.defined(); });
  if (outputs.empty()) {
    throw UsageError::conflict(kDdp, "the forward returned no tensor",
                               "return the output, from which the loss is computed");
  }
  impl_->sync_buffers = *impl_->pauses == 0;
  impl_->is_announced = true;
  impl_->in_backward = -1;
  impl_->sends_buffers = impl_->options.broadcast_buffers && !impl_->buffers_before_forward;
  impl_->expect_backward(impl_->options.find_unused_parameters ? outputs
                                                               : std::vector<torch::Tensor>{});
}

void GradientReducer::send_buffers_before_forward() {
  impl_->buffers_before_forward = impl_->options.broadcast_buffers;
}

void GradientReducer::broadcast_buffers() { impl_->broadcast_buffers(); }

std::vector<std::int64_t> GradientReducer::bucket_bytes() const {
  std::vector<std::int64_t> sizes;
  if (impl_->reducer == nullptr) return sizes;
  for (const auto& bucket : impl_->reducer->get_grad_buckets()) {
    sizes.push_back(static_cast<std::int64_t>(bucket.getBuffer().nbytes()));
  }
  return sizes;
}

}  // namespace ladder
