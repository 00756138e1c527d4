// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/data_parallel.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/nn/random_scope.h"
#include "ladder/parallel/replicas.h"
#include "ladder/parallel/version_counter_guard.h"

namespace ladder {
namespace {

using Tensors = std::vector<torch::Tensor>;

constexpr const char* kName = "DataParallel";

// A thread that runs one task at a time. Kept from step to step: starting a thread costs more than
// a small task, and OpenMP builds a team of threads for each new one. The destructor waits for the
// current task.
class ReplicaThread {
 public:
  ReplicaThread() : thread_([this](const std::stop_token& stop) { work(stop); }) {}

  // The future gets the end of the task, or its exception. Call it when the last task is done.
  std::future<void> start(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    task_ = std::packaged_task<void()>(std::move(task));
    changed_.notify_all();
    return task_.get_future();
  }

 private:
  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return task_.valid(); })) {
      auto task = std::exchange(task_, {});
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::packaged_task<void()> task_;  // valid while there is one to do
  std::jthread thread_;              // last member: it uses the others
};

Tensors joined(Tensors first, const Tensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Tensors trained_parameters(const Model& model) {
  auto parameters = unique_tensors(model.parameters());
  std::erase_if(parameters, [](const auto& parameter) { return !parameter.requires_grad(); });
  return parameters;
}

// The current stream of each GPU among the devices. Each thread has its own.
std::vector<c10::Stream> current_streams(const std::vector<torch::Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const auto& device : std::unordered_set(devices.begin(), devices.end())) {
    if (device.is_cpu()) continue;
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  return streams;
}

}  // namespace

// The replicas and their threads. Replica 0 shares the memory of the model, but is a module of its
// own, so that its gradients can be added to those of the others first.
class DataParallel::Replicas {
 public:
  struct Pass : ReplicaPass {
    using ReplicaPass::ReplicaPass;
    std::vector<c10::Stream> streams;  // the caller's, of each GPU
  };

  Replicas(const Model& model, const std::vector<torch::Device>& devices) : devices_(devices) {
    for (const auto& device : devices) {
      models_.push_back(model.new_like());
      models_.back()->to(device);
    }
    start_threads();
  }

  const torch::Device& first_device() const { return devices_.front(); }

  // Gives the replicas the current weights and modes of the model.
  void refresh(const Model& model) {
    const torch::NoGradGuard no_grad;
    require_on_device(kName, model, devices_.front());
    const auto parameters = unique_tensors(model.parameters());
    const auto buffers = unique_tensors(model.buffers());
    const auto modes = modes_of(model);
    std::vector<std::int64_t> versions;
    for (const auto& parameter : parameters) versions.push_back(parameter._version());
    for (std::size_t i = 0; i < models_.size(); ++i) {
      const auto own_parameters = unique_tensors(models_[i]->parameters());
      const auto own_buffers = unique_tensors(models_[i]->buffers());
      // As for the model itself: only weights that a step has changed invalidate an earlier graph.
      const VersionCounterGuard keep_weights(versions == versions_ ? own_parameters : Tensors{});
      const VersionCounterGuard keep(own_buffers);
      if (devices_[i] == devices_.front()) {
        share_memory(parameters, own_parameters);
        (i == 0 ? share_memory : copy_coalesced)(buffers, own_buffers);
      } else {
        copy_coalesced(joined(parameters, buffers), joined(own_parameters, own_buffers));
      }
      for (std::size_t k = 0; k < parameters.size(); ++k) {
        own_parameters[k].set_requires_grad(parameters[k].requires_grad());
      }
      set_modes(*models_[i], modes);
    }
    versions_ = versions;
  }

  c10::intrusive_ptr<Pass> forward(const Inputs& inputs, bool with_grad) {
    const auto detached = inputs.map([](const torch::Tensor& tensor) { return tensor.detach(); });
    auto pass = c10::make_intrusive<Pass>(
        inputs, detached.chunk(static_cast<std::int64_t>(models_.size())));
    pass->streams = current_streams(devices_);
    const auto keys = divide_random_key(pass->inputs);
    side_by_side(pass->inputs.size(), [&](std::size_t i) {
      const torch::AutoGradMode grad_mode(with_grad);
      std::optional<RandomScope> random;
      if (keys[i]) random.emplace(*keys[i]);
      pass->begin_part(i, inputs, devices_[i], with_grad);
      pass->outputs[i] = models_[i]->forward(pass->inputs[i]);
    });
    return pass;
  }

  // See ReplicaPass::backward. Runs on the streams of its forward, as all operations of autograd.
  Tensors backward(const Pass& pass, const torch::Tensor& gradient) {
    const c10::MultiStreamGuard same_streams(pass.streams);
    Tensors parts;
    std::int64_t begin = 0;
    for (const auto& output : pass.outputs) {
      parts.push_back(gradient.narrow(0, begin, output.size(0)).to(output.device()));
      begin += output.size(0);
    }
    std::vector<Tensors> found(parts.size());
    const auto differentiate = [&](std::size_t i) {
      found[i] = torch::autograd::grad({pass.outputs[i]},
                                       pass.leaves(i, trained_parameters(*models_[i])), {parts[i]},
                                       /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                                       /*allow_unused=*/true);
    };
    // The engine has a thread for each GPU, and this may be that of the first device: to wait here
    // for a thread that needs it would be a deadlock.
    if (devices_.front().is_cpu()) {
      side_by_side(parts.size(), differentiate);
    } else {
      for (std::size_t i = 0; i < parts.size(); ++i) differentiate(i);
    }
    return sum(pass, std::move(found));
  }

 private:
  // A thread adopts its share of the CPU threads when it first reads their number.
  void start_threads() {
    const int cpu_threads = at::get_num_threads();
    at::set_num_threads(std::max(1, cpu_threads / static_cast<int>(models_.size())));
    for (std::size_t i = 0; i < models_.size(); ++i) {
      threads_.push_back(std::make_unique<ReplicaThread>());
    }
    side_by_side(models_.size(), [](std::size_t) { at::get_num_threads(); });
    at::set_num_threads(cpu_threads);
  }

  // Runs task(i) on thread i for all i < count, with device i as the current one and this thread's
  // thread-local state and streams; waits for all.
  void side_by_side(std::size_t count, const std::function<void(std::size_t)>& task) {
    const at::ThreadLocalState state;  // which has no streams
    const auto streams = current_streams(devices_);
    std::vector<std::future<void>> running;
    for (std::size_t i = 0; i < count; ++i) {
      running.push_back(threads_[i]->start([&, i] {
        const at::ThreadLocalStateGuard same_state(state);
        const c10::MultiStreamGuard same_streams(streams);
        const c10::DeviceGuard device(devices_[i]);
        task(i);
      }));
    }
    for (const auto& run : running) run.wait();
    for (auto& run : running) run.get();
  }

  // `found`: the gradients of the leaves of each replica.
  Tensors sum(const Pass& pass, std::vector<Tensors> found) const {
    Tensors sums(trained_parameters(*models_.front()).size());
    std::vector<Tensors> of_inputs;
    for (auto& gradients : found) {
      of_inputs.emplace_back(gradients.begin() + std::ssize(sums), gradients.end());
      gradients.resize(sums.size());
      const auto here = coalesced_to(devices_.front(), gradients);
      Tensors totals;
      Tensors addends;
      for (std::size_t p = 0; p < sums.size(); ++p) {
        if (!here[p].defined()) continue;
        if (sums[p].defined()) {
          totals.push_back(sums[p]);
          addends.push_back(here[p]);
        } else {
          sums[p] = here[p];
        }
      }
      if (!totals.empty()) at::_foreach_add_(totals, addends);
    }
    return joined(pass.gradients_of_inputs(of_inputs, devices_.front()), sums);
  }

  std::vector<torch::Device> devices_;
  std::vector<std::shared_ptr<Model>> models_;
  std::vector<std::int64_t> versions_;  // of the model's parameters at the last forward
  std::vector<std::unique_ptr<ReplicaThread>> threads_;
};

DataParallel::DataParallel(std::shared_ptr<Model> module, DataParallelOptions options)
    : ModelWrapper(std::move(module)),
      output_device_(options.output_device.value_or(
          options.device_ids.empty() ? torch::Device(torch::kCPU) : options.device_ids.front())) {
  if (options.device_ids.empty()) {
    throw UsageError::missing(kName, "one device or more in device_ids",
                              "on a machine without GPUs: {torch::kCPU, torch::kCPU}");
  }
  require_on_device(kName, *module_, options.device_ids.front());
  if (options.device_ids.size() > 1) {
    replicas_ = std::make_shared<Replicas>(*module_, options.device_ids);
  }
}

DataParallel::~DataParallel() = default;

torch::Tensor DataParallel::forward(const Inputs& inputs) {
  if (replicas_ == nullptr) {
    const auto parameters = module_->parameters();
    const auto device = parameters.empty() ? output_device_ : parameters.front().device();
    const auto moved = [&](const torch::Tensor& tensor) { return tensor.to(device); };
    return module_->forward(inputs.map(moved)).to(output_device_);
  }
  replicas_->refresh(*module_);
  if (!torch::GradMode::is_enabled()) {
    return replicas_->forward(inputs, /*with_grad=*/false)->joined_output(output_device_);
  }
  Tensors leaves;
  for (const auto& [name, tensor] : inputs) leaves.push_back(tensor);
  const auto forward = [&] {
    auto pass = replicas_->forward(inputs, /*with_grad=*/true);
    pass->backward = [replicas = replicas_, own = pass.get()](const torch::Tensor& gradient) {
      return replicas->backward(*own, gradient);
    };
    return pass;
  };
  return apply_as_one_node(forward, replicas_->first_device(),
                           joined(leaves, trained_parameters(*module_)))
      .to(output_device_);
}

}  // namespace ladder
