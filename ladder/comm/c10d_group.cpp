// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/c10d_group.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Logging.h>
#include <fmt/core.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "ladder/comm/errors.h"
#include "ladder/comm/shared_memory.h"
#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/launch/failure_kind.h"

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

// Collectives of one rank: nothing to exchange.
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

SharedMemory::AllGather all_gather_in(const C10dStore& store, const char* name, int rank,
                                      int world_size) {
  return [=, round = 0](const std::string& own) mutable {
    const auto key = [&](int other) { return fmt::format("{}/{}/{}", name, round, other); };
    store->set(key(rank), own);
    std::vector<std::string> keys;
    for (int other = 0; other < world_size; ++other) keys.push_back(key(other));
    std::vector<std::string> all;
    for (const auto& text : store->multiGet(keys)) all.emplace_back(text.begin(), text.end());
    ++round;
    return all;
  };
}

// Gloo, except that the collectives of ProcessGroup use shared memory.
class GlooAndSharedMemory : public c10d::ProcessGroupGloo {
 public:
  GlooAndSharedMemory(const C10dStore& store, const ProcessGroup::Setup& setup,
                      const c10::intrusive_ptr<Options>& options,
                      std::unique_ptr<SharedMemory> memory)
      : ProcessGroupGloo(store, setup.rank, setup.world_size, options),
        memory_(std::move(memory)) {}

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    if (!is_shareable(tensors)) return ProcessGroupGloo::broadcast(tensors, options);
    const at::AutoDispatchBelowADInplaceOrView plain;
    const auto result = tensors.front().contiguous();
    const int from = static_cast<int>(options.rootRank);
    const auto consume = [&](int rank, const at::Tensor& piece, std::int64_t begin) {
      if (rank != getRank()) result.view(-1).narrow(0, begin, piece.numel()).copy_(piece);
    };
    exchange({"broadcast", "", from}, result, options.timeout, consume);
    if (!result.is_same(tensors.front())) tensors.front().copy_(result);
    return completed(tensors);
  }

  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const auto op = options.reduceOp.op_;
    if (!name_of(op) || !is_shareable(tensors)) {
      return ProcessGroupGloo::allreduce(tensors, options);
    }
    return reduced("all_reduce", tensors, op, options.timeout, /*here=*/true);
  }

  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const auto op = options.reduceOp.op_;
    if (!name_of(op) || !is_shareable(tensors)) return ProcessGroupGloo::reduce(tensors, options);
    return reduced("reduce", tensors, op, options.timeout, getRank() == options.rootRank);
  }

  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& options) override {
    // Gloo reports outputs that do not fit.
    if (!is_shareable(inputs) || !have_room(outputs, inputs.front())) {
      return ProcessGroupGloo::allgather(outputs, inputs, options);
    }
    return gathered("all_gather", outputs.front(), inputs.front(), options.timeout);
  }

  Work gather(std::vector<Tensors>& outputs, Tensors& inputs,
              const c10d::GatherOptions& options) override {
    const bool here = getRank() == options.rootRank;
    if (!is_shareable(inputs) || (here && !have_room(outputs, inputs.front()))) {
      return ProcessGroupGloo::gather(outputs, inputs, options);
    }
    return gathered("gather", here ? outputs.front() : Tensors(), inputs.front(), options.timeout);
  }

  Work barrier(const c10d::BarrierOptions& options) override {
    exchange({"barrier", ""}, at::empty({0}), options.timeout, [](auto&&...) {});
    return completed({});
  }

 private:
  // With the result `here`, or on other ranks alone.
  Work reduced(const char* operation, const Tensors& tensors, c10d::ReduceOp::RedOpType op,
               std::chrono::milliseconds timeout, bool here) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    const auto result = tensors.front().contiguous();
    at::Tensor first;  // rank 0's piece; the others are of the same place
    const auto consume = [&](int rank, const at::Tensor& piece, std::int64_t begin) {
      if (!here) return;
      if (rank == 0) {
        first = piece;
        return;
      }
      auto part = result.view(-1).narrow(0, begin, piece.numel());
      const auto& before = rank == 1 ? first : part;
      if (op == c10d::ReduceOp::SUM) {
        at::add_out(part, before, piece);
      } else if (op == c10d::ReduceOp::MIN) {
        at::minimum_out(part, before, piece);
      } else {
        at::maximum_out(part, before, piece);
      }
    };
    exchange({operation, name_of(op)}, result, timeout, consume);
    if (here && !result.is_same(tensors.front())) tensors.front().copy_(result);
    return completed(tensors);
  }

  // `all`: empty where nothing is to be received.
  Work gathered(const char* operation, const Tensors& all, const at::Tensor& input,
                std::chrono::milliseconds timeout) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    const auto consume = [&](int rank, const at::Tensor& piece, std::int64_t begin) {
      if (all.empty()) return;
      all[static_cast<std::size_t>(rank)].view(-1).narrow(0, begin, piece.numel()).copy_(piece);
    };
    exchange({operation, ""}, input.contiguous(), timeout, consume);
    return completed(all);
  }

  // Equal on all ranks.
  static bool is_shareable(const Tensors& tensors) {
    return tensors.size() == 1 && tensors.front().is_cpu() &&
           tensors.front().layout() == torch::kStrided;
  }

  bool have_room(const std::vector<Tensors>& outputs, const at::Tensor& input) const {
    return outputs.size() == 1 && outputs.front().size() == static_cast<std::size_t>(getSize()) &&
           std::all_of(outputs.front().begin(), outputs.front().end(), [&](const auto& output) {
             return output.numel() == input.numel() &&
                    output.scalar_type() == input.scalar_type() && output.is_cpu() &&
                    output.is_contiguous();
           });
  }

  // Null: for Gloo.
  static const char* name_of(c10d::ReduceOp::RedOpType op) {
    if (op == c10d::ReduceOp::SUM) return "sum";
    if (op == c10d::ReduceOp::MIN) return "min";
    return op == c10d::ReduceOp::MAX ? "max" : nullptr;
  }

  template <typename ConsumePiece>
  void exchange(SharedMemory::Call call, const at::Tensor& own, std::chrono::milliseconds timeout,
                const ConsumePiece& consume) {
    call.form += fmt::format("{}{}", call.form.empty() ? "" : ", ", own.dtype().name());
    const auto size = static_cast<std::size_t>(own.element_size());
    const auto consume_bytes = [&](int rank, std::size_t offset, std::span<const std::byte> bytes) {
      const auto piece =
          torch::from_blob(const_cast<std::byte*>(bytes.data()),
                           {static_cast<std::int64_t>(bytes.size() / size)}, own.options());
      consume(rank, piece, static_cast<std::int64_t>(offset / size));
    };
    memory_->exchange(call, {static_cast<const std::byte*>(own.const_data_ptr()), own.nbytes()},
                      consume_bytes,
                      timeout == c10d::kUnsetTimeout ? getOptions()->timeout : timeout);
  }

  std::unique_ptr<SharedMemory> memory_;
};

Backend make_gloo(ProcessGroup::Setup& setup, const C10dStore& store) {
  using c10d::ProcessGroupGloo;
  auto options = ProcessGroupGloo::Options::create(setup.timeout);
  options->devices.push_back(
      setup.gloo_interface.empty()
          ? ProcessGroupGloo::createDeviceForHostname(setup.gloo_address)
          : ProcessGroupGloo::createDeviceForInterface(setup.gloo_interface));
  if (setup.backend == "shm") {
    auto memory =
        SharedMemory::make(setup.rank, setup.world_size,
                           all_gather_in(store, "shared_memory", setup.rank, setup.world_size));
    if (memory) {
      return c10::make_intrusive<GlooAndSharedMemory>(store, setup, options, std::move(memory));
    }
    setup.backend = "gloo";
  }
  return c10::make_intrusive<ProcessGroupGloo>(store, setup.rank, setup.world_size, options);
}

Backend make_nccl([[maybe_unused]] const ProcessGroup::Setup& setup,
                  [[maybe_unused]] const C10dStore& store) {
#ifdef USE_C10D_NCCL
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = setup.timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, setup.rank, setup.world_size, options);
#else
  throw UsageError::conflict("backend nccl", "this LibTorch was built without NCCL",
                             "use backend gloo, or a LibTorch with CUDA");
#endif
}

void set_backends(c10d::ProcessGroup& group, ProcessGroup::Setup& setup, const C10dStore& store) {
  using Type = c10d::ProcessGroup::BackendType;
  const auto set = [&](const Backend& cpu, Type cpu_type, const Backend& cuda, Type cuda_type) {
    group.setDefaultBackend(cuda_type);
    group.setBackend(c10::kCPU, cpu_type, cpu);
    group.setBackend(c10::kCUDA, cuda_type, cuda);
  };
  if (setup.backend == "single") {
    const auto single = c10::make_intrusive<SingleBackend>();
    return set(single, Type::CUSTOM, single, Type::CUSTOM);
  }
  const auto gloo = make_gloo(setup, c10::make_intrusive<c10d::PrefixStore>("cpu/", store));
  if (setup.backend != "nccl") return set(gloo, Type::GLOO, gloo, Type::GLOO);
  const auto nccl = make_nccl(setup, c10::make_intrusive<c10d::PrefixStore>("cuda/", store));
  set(gloo, Type::GLOO, nccl, Type::NCCL);
}

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

std::vector<int> missing_keys(c10d::Store& store, const std::vector<std::string>& keys) {
  std::vector<int> missing;
  try {
    for (std::size_t rank = 0; rank < keys.size(); ++rank) {
      if (!store.check({keys[rank]})) missing.push_back(static_cast<int>(rank));
    }
  } catch (const std::exception& error) {
    throw no_rendezvous("rank 0", message_of(error),
                        "rank 0 or torchrun serves it: see its output");
  }
  return missing;
}

}  // namespace

C10dGroup make_c10d_group(ProcessGroup::Setup& setup) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>("default_pg", setup.store);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, setup.rank, setup.world_size);
  set_backends(*group, setup, store);
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
  if (done.wait_for(timeout + kForTheirOwnError) == std::future_status::timeout) {
    thread.detach();
    throw no_rendezvous(
        address, timed_out(timeout, "an answer"),
        "rank 0 or torchrun serves it: it has not begun, hangs or has ended: see its "
        "output, and compare MASTER_ADDR and MASTER_PORT");
  }
  thread.join();
  done.get();
}

std::vector<int> wait_for_keys(c10d::Store& store, const std::vector<std::string>& keys,
                               std::chrono::milliseconds timeout) {
  try {
    store.wait(keys, timeout);
    return {};
  } catch (const std::exception&) {
    auto missing = missing_keys(store, keys);
    if (!missing.empty()) exit_barrier(store, keys.front(), keys.size() - missing.size());
    return missing;
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

void run_collective(const ProcessGroup& group, const char* operation,
                    const std::function<void()>& collective) {
  try {
    collective();
  } catch (const std::exception& error) {
    if (failure_kind(error) != FailureKind::kLostPeer) throw;
    throw collective_failed(operation, group.rank(), group.world_size(), message_of(error));
  }
}

}  // namespace ladder
