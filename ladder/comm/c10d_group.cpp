// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/c10d_group.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Logging.h>
#include <fmt/core.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "ladder/comm/errors.h"
#include "ladder/core/clock.h"
#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/launch/failure_kind.h"

namespace ladder {
namespace {

// LibTorch logs each error that it throws, with a stack trace of forty lines; not while one of
// these exists. It changes a global variable: not for threads that outlive their caller.
class C10dLogSilencer {
 public:
  C10dLogSilencer() : before_(FLAGS_caffe2_log_level) {
    constexpr int kFatalOnly = 3;
    if (!environment_variable("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = kFatalOnly;
  }
  ~C10dLogSilencer() { FLAGS_caffe2_log_level = before_; }
  C10dLogSilencer(const C10dLogSilencer&) = delete;
  C10dLogSilencer& operator=(const C10dLogSilencer&) = delete;

 private:
  int before_;
};

using Tensors = std::vector<at::Tensor>;
using C10dWork = c10::intrusive_ptr<c10d::Work>;

// Makes a future when it is needed: that takes longer than a small message.
class CompletedWork : public c10d::Work {
 public:
  explicit CompletedWork(Tensors tensors) : tensors_(std::move(tensors)) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
  Tensors result() override { return tensors_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(tensors_));
    return future;
  }

 private:
  Tensors tensors_;
};

// Collectives of one rank: nothing to exchange.
class SingleBackend : public c10d::Backend {
 public:
  SingleBackend() : Backend(/*rank=*/0, /*size=*/1) {}

  const std::string getBackendName() const override { return "single"; }
  C10dWork broadcast(Tensors& tensors, const c10d::BroadcastOptions& /*options*/) override {
    return completed(tensors);
  }
  C10dWork allreduce(Tensors& tensors, const c10d::AllreduceOptions& /*options*/) override {
    return completed(tensors);
  }
  C10dWork reduce(Tensors& tensors, const c10d::ReduceOptions& /*options*/) override {
    return completed(tensors);
  }
  C10dWork allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::AllgatherOptions& /*options*/) override {
    return copied(outputs, inputs);
  }
  C10dWork _allgather_base(at::Tensor& output, at::Tensor& input,
                           const c10d::AllgatherOptions& /*options*/) override {
    output.copy_(input.view_as(output));
    return completed({output});
  }
  C10dWork gather(std::vector<Tensors>& outputs, Tensors& inputs,
                  const c10d::GatherOptions& /*options*/) override {
    return copied(outputs, inputs);
  }
  C10dWork _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& /*options*/) override {
    output.copy_(input.view_as(output));
    return completed({output});
  }
  C10dWork barrier(const c10d::BarrierOptions& /*options*/) override { return completed({}); }

 private:
  static C10dWork copied(std::vector<Tensors>& outputs, const Tensors& inputs) {
    outputs.front().front().copy_(inputs.front());
    return completed(outputs.front());
  }
};

std::vector<int> missing_keys(c10d::Store& store, const std::vector<std::string>& keys,
                              const std::string& address) {
  std::vector<int> missing;
  try {
    for (std::size_t rank = 0; rank < keys.size(); ++rank) {
      if (!store.check({keys[rank]})) missing.push_back(static_cast<int>(rank));
    }
  } catch (const std::exception& error) {
    throw no_rendezvous(address, message_of(error));
  }
  return missing;
}

}  // namespace

C10dWork completed(const Tensors& tensors) { return c10::make_intrusive<CompletedWork>(tensors); }

DeviceBackends make_single(ProcessGroup::Setup& /*setup*/, const C10dStore& /*store*/) {
  const auto single = c10::make_intrusive<SingleBackend>();
  return {single, single, c10d::ProcessGroup::BackendType::CUSTOM,
          c10d::ProcessGroup::BackendType::CUSTOM};
}

C10dGroup make_c10d_group(ProcessGroup::Setup& setup) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>("default_pg", setup.store);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, setup.rank, setup.world_size);
  const auto made = setup.make(setup, store);
  group->setDefaultBackend(made.cuda_type);
  group->setBackend(c10::kCPU, made.cpu_type, made.cpu);
  group->setBackend(c10::kCUDA, made.cuda_type, made.cuda);
  group->setGroupName("0");
  return group;
}

void run_with_deadline(std::chrono::milliseconds timeout, const std::string& address,
                       std::function<void()> operations) {
  constexpr std::chrono::seconds kForTheirOwnError{4};  // exit_barrier included
  const C10dLogSilencer quiet;
  std::packaged_task<void()> task(std::move(operations));
  auto done = task.get_future();
  std::thread thread(std::move(task));
  Deadline deadline(timeout + kForTheirOwnError);
  while (done.wait_for(deadline.slice()) == std::future_status::timeout) {
    if (!deadline.passed()) continue;
    thread.detach();
    throw no_rendezvous(address, timed_out(timeout, "an answer"));
  }
  thread.join();
  done.get();
}

std::vector<int> wait_for_keys(c10d::Store& store, const std::vector<std::string>& keys,
                               std::chrono::milliseconds timeout, const std::string& address) {
  Deadline deadline(timeout);
  while (true) {
    try {
      store.wait(keys, deadline.slice());
      return {};
    } catch (const std::exception&) {
      auto missing = missing_keys(store, keys, address);
      if (!missing.empty() && !deadline.passed()) continue;
      if (!missing.empty()) exit_barrier(store, keys.front(), keys.size() - missing.size());
      return missing;
    }
  }
}

void exit_barrier(c10d::Store& store, const std::string& key, std::size_t ranks) {
  constexpr std::chrono::seconds kLongest{2};
  try {
    const auto count = static_cast<std::size_t>(store.add(key + "/count", 1));
    if (count == ranks) store.set(key + "/complete", std::string("1"));
    store.wait({key + "/complete"}, kLongest);
  } catch (const std::exception&) {
    return;
  }
}

namespace {

SharesTensors* shared_memory_of(const ProcessGroup& group) {
  return dynamic_cast<SharesTensors*>(c10d_group(group)->getBackend(c10::kCPU).get());
}

}  // namespace

bool is_synchronous(const ProcessGroup& group) { return shared_memory_of(group) != nullptr; }

void share_memory(const ProcessGroup& group, const std::vector<at::Tensor>& tensors) {
  auto* const backend = shared_memory_of(group);
  if (backend == nullptr) return;
  for (const auto& tensor : tensors) {
    if (tensor.is_cpu()) backend->share(tensor);
  }
}

void run_collective(const ProcessGroup& group, const std::string& operation,
                    const std::function<void()>& collective) {
  try {
    collective();
  } catch (const std::exception& error) {
    if (failure_kind(error) != FailureKind::kLostPeer) throw;
    throw collective_failed(operation, group.rank(), group.world_size(), message_of(error));
  }
}

}  // namespace ladder
