// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/c10d_group.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Logging.h>
#include <fmt/core.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <exception>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

using Tensors = std::vector<at::Tensor>;
using Work = c10::intrusive_ptr<c10d::Work>;
using Backend = c10::intrusive_ptr<c10d::Backend>;

Work completed(const Tensors& tensors) {
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(tensors));
  return c10d::Work::create_from_future(future);
}

// Collectives of one rank: everything is already where it belongs.
class SingleBackend : public c10d::Backend {
 public:
  SingleBackend() : Backend(/*rank=*/0, /*size=*/1) {}

  const std::string getBackendName() const override { return "single"; }
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& /*options*/) override {
    return completed(tensors);
  }
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& /*options*/) override {
    return completed(tensors);
  }
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& /*options*/) override {
    return completed(tensors);
  }
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& /*options*/) override {
    return copied(outputs, inputs);
  }
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs,
              const c10d::GatherOptions& /*options*/) override {
    return copied(outputs, inputs);
  }
  Work barrier(const c10d::BarrierOptions& /*options*/) override { return completed({}); }

 private:
  static Work copied(std::vector<Tensors>& outputs, const Tensors& inputs) {
    outputs.front().front().copy_(inputs.front());
    return completed(outputs.front());
  }
};

Backend make_gloo(const ProcessGroup::Setup& setup, const C10dStore& store) {
  using c10d::ProcessGroupGloo;
  auto options = ProcessGroupGloo::Options::create(setup.timeout);
  options->devices.push_back(
      setup.gloo_interface.empty()
          ? ProcessGroupGloo::createDeviceForHostname(setup.gloo_address)
          : ProcessGroupGloo::createDeviceForInterface(setup.gloo_interface));
  return c10::make_intrusive<ProcessGroupGloo>(store, setup.rank, setup.world_size, options);
}

#ifdef USE_C10D_NCCL
Backend make_nccl(const ProcessGroup::Setup& setup, const C10dStore& store) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = setup.timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, setup.rank, setup.world_size, options);
}
#else
Backend make_nccl(const ProcessGroup::Setup& /*setup*/, const C10dStore& /*store*/) {
  throw UsageError::conflict("--backend nccl", "this LibTorch was built without NCCL",
                             "use --backend gloo, or a LibTorch with CUDA");
}
#endif

using BackendType = c10d::ProcessGroup::BackendType;

struct DeviceBackend {
  c10::DeviceType device;
  BackendType type;
  Backend backend;
};

std::vector<DeviceBackend> make_backends(const ProcessGroup::Setup& setup, const C10dStore& store) {
  if (setup.backend == "single") {
    const auto single = c10::make_intrusive<SingleBackend>();
    return {{c10::kCPU, BackendType::CUSTOM, single}, {c10::kCUDA, BackendType::CUSTOM, single}};
  }
  const auto gloo = make_gloo(setup, c10::make_intrusive<c10d::PrefixStore>("cpu/", store));
  if (setup.backend == "gloo") {
    return {{c10::kCPU, BackendType::GLOO, gloo}, {c10::kCUDA, BackendType::GLOO, gloo}};
  }
  const auto nccl = make_nccl(setup, c10::make_intrusive<c10d::PrefixStore>("cuda/", store));
  return {{c10::kCPU, BackendType::GLOO, gloo}, {c10::kCUDA, BackendType::NCCL, nccl}};
}

std::vector<int> missing_keys(c10d::Store& store, const std::vector<std::string>& keys) {
  std::vector<int> missing;
  try {
    for (std::size_t rank = 0; rank < keys.size(); ++rank) {
      if (!store.check({keys[rank]})) missing.push_back(static_cast<int>(rank));
    }
  } catch (const std::exception& error) {
    throw DistributedError::no_rendezvous("rank 0", error.what(),
                                          "rank 0 keeps it, or torchrun: look at what it printed");
  }
  return missing;
}

}  // namespace

C10dGroup make_c10d_group(const ProcessGroup::Setup& setup) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>("default_pg", setup.store);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, setup.rank, setup.world_size);
  const auto backends = make_backends(setup, store);
  group->setDefaultBackend(backends.back().type);
  for (const auto& [device, type, backend] : backends) group->setBackend(device, type, backend);
  group->setGroupName("0");
  return group;
}

void leave_together(c10d::Store& store, const std::string& key, std::size_t ranks) {
  constexpr std::chrono::seconds kForTheOthers{2};
  try {
    const auto count = static_cast<std::size_t>(store.add(key + "/leaving", 1));
    if (count == ranks) store.set(key + "/left_by_all", std::string("1"));
    store.wait({key + "/left_by_all"}, kForTheOthers);
  } catch (const std::exception&) {
    return;
  }
}

std::vector<int> wait_for_keys(c10d::Store& store, const std::vector<std::string>& keys,
                               std::chrono::milliseconds timeout) {
  const QuietC10d quiet;
  try {
    store.wait(keys, timeout);
    return {};
  } catch (const std::exception&) {
    auto missing = missing_keys(store, keys);
    if (!missing.empty()) leave_together(store, keys.front(), keys.size() - missing.size());
    return missing;
  }
}

void talk_within(std::chrono::milliseconds timeout, const std::string& address,
                 std::function<void()> talk) {
  constexpr std::chrono::seconds kForItsOwnError{4};  // leave_together included
  std::packaged_task<void()> task(std::move(talk));
  auto done = task.get_future();
  std::thread(std::move(task)).detach();
  if (done.wait_for(timeout + kForItsOwnError) == std::future_status::timeout) {
    throw DistributedError::no_rendezvous(
        address,
        fmt::format("no answer within {} s", static_cast<double>(timeout.count()) / 1000.0),
        "who keeps it, rank 0 or torchrun, hangs or is gone: look at what it printed");
  }
  done.get();
}

void run_collective(const ProcessGroup& group, const char* operation,
                    const std::function<void()>& collective) {
  try {
    collective();
  } catch (const std::exception& error) {
    throw DistributedError::collective_failed(operation, group.rank(), group.world_size(),
                                              error.what());
  }
}

QuietC10d::QuietC10d() : before_(FLAGS_caffe2_log_level) {
  constexpr int kFatalOnly = 3;
  if (!environment_variable("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = kFatalOnly;
}

QuietC10d::~QuietC10d() { FLAGS_caffe2_log_level = before_; }

}  // namespace ladder
