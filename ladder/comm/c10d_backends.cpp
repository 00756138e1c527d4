// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/c10d_backends.h"

#include <ATen/core/ivalue.h>
#include <fmt/core.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ladder/comm/shared_memory.h"
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

// Every rank gives a text and gets those of all, in rank order, by way of the store.
SharedMemory::AllGather all_gather_in(const C10dStore& store, int rank, int world_size) {
  return [=, round = 0](const std::string& own) mutable {
    const auto key = [&](int other) { return fmt::format("shared_memory/{}/{}", round, other); };
    store->set(key(rank), own);
    std::vector<std::string> all;
    for (int other = 0; other < world_size; ++other) all.push_back(store->get_to_str(key(other)));
    ++round;
    return all;
  };
}

// Adds `piece` to `result`, or takes the smaller or greater of both.
void reduce_into(const at::Tensor& result, const at::Tensor& piece, c10d::ReduceOp::RedOpType op) {
  if (op == c10d::ReduceOp::SUM) result.add_(piece);
  if (op == c10d::ReduceOp::MIN) at::minimum_out(const_cast<at::Tensor&>(result), result, piece);
  if (op == c10d::ReduceOp::MAX) at::maximum_out(const_cast<at::Tensor&>(result), result, piece);
}

// Gloo, except that ranks of one machine reduce and gather in memory that they share. These two
// are in every step; the other collectives are at the beginning, at the end, or few bytes.
class GlooAndSharedMemory : public c10d::ProcessGroupGloo {
 public:
  GlooAndSharedMemory(const C10dStore& store, const ProcessGroup::Setup& setup,
                      const c10::intrusive_ptr<Options>& options,
                      std::unique_ptr<SharedMemory> memory)
      : ProcessGroupGloo(store, setup.rank, setup.world_size, options),
        memory_(std::move(memory)) {}

  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const auto op = options.reduceOp.op_;
    if (!name_of(op) || !is_shareable(tensors))
      return ProcessGroupGloo::allreduce(tensors, options);
    const at::AutoDispatchBelowADInplaceOrView plain;
    const auto result = tensors.front().contiguous();
    const auto read = [&](int rank, const at::Tensor& piece, std::int64_t begin) {
      const auto part = result.view(-1).narrow(0, begin, piece.numel());
      if (rank == 0) {
        part.copy_(piece);
      } else {
        reduce_into(part, piece, op);
      }
    };
    exchange({"all_reduce", name_of(op)}, result, options.timeout, read);
    if (!result.is_same(tensors.front())) tensors.front().copy_(result);
    return completed(tensors);
  }

  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& options) override {
    // What does not fit is for Gloo to refuse.
    if (!is_shareable(inputs) || !have_room(outputs, inputs.front())) {
      return ProcessGroupGloo::allgather(outputs, inputs, options);
    }
    const at::AutoDispatchBelowADInplaceOrView plain;
    const auto own = inputs.front().contiguous();
    Tensors all;
    for (const auto& output : outputs.front()) all.push_back(output.contiguous());
    const auto read = [&](int rank, const at::Tensor& piece, std::int64_t begin) {
      all[static_cast<std::size_t>(rank)].view(-1).narrow(0, begin, piece.numel()).copy_(piece);
    };
    exchange({"all_gather", ""}, own, options.timeout, read);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      auto& output = outputs.front()[rank];
      if (!all[rank].is_same(output)) output.copy_(all[rank]);
    }
    return completed(outputs.front());
  }

 private:
  // By what is equal on all ranks.
  static bool is_shareable(const Tensors& tensors) {
    return tensors.size() == 1 && tensors.front().is_cpu() &&
           tensors.front().layout() == torch::kStrided;
  }

  bool have_room(const std::vector<Tensors>& outputs, const at::Tensor& input) const {
    return outputs.size() == 1 && outputs.front().size() == static_cast<std::size_t>(getSize()) &&
           std::all_of(outputs.front().begin(), outputs.front().end(), [&](const auto& output) {
             return output.numel() == input.numel() &&
                    output.scalar_type() == input.scalar_type() && output.is_cpu();
           });
  }

  // Null: none that is done here.
  static const char* name_of(c10d::ReduceOp::RedOpType op) {
    if (op == c10d::ReduceOp::SUM) return "sum";
    if (op == c10d::ReduceOp::MIN) return "min";
    return op == c10d::ReduceOp::MAX ? "max" : nullptr;
  }

  template <typename ReadPiece>
  void exchange(SharedMemory::Call call, const at::Tensor& own, std::chrono::milliseconds timeout,
                const ReadPiece& read) {
    call.form += fmt::format("{}{}", call.form.empty() ? "" : ", ", own.dtype().name());
    const auto size = static_cast<std::size_t>(own.element_size());
    const auto read_bytes = [&](int rank, std::size_t offset, std::span<const std::byte> bytes) {
      const auto piece =
          torch::from_blob(const_cast<std::byte*>(bytes.data()),
                           {static_cast<std::int64_t>(bytes.size() / size)}, own.options());
      read(rank, piece, static_cast<std::int64_t>(offset / size));
    };
    memory_->exchange(call, {static_cast<const std::byte*>(own.const_data_ptr()), own.nbytes()},
                      read_bytes, timeout == c10d::kUnsetTimeout ? getOptions()->timeout : timeout);
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
    auto memory = SharedMemory::make(setup.rank, setup.world_size,
                                     all_gather_in(store, setup.rank, setup.world_size));
    if (memory) {
      return c10::make_intrusive<GlooAndSharedMemory>(store, setup, options, std::move(memory));
    }
    setup.backend = "gloo";
  }
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
  throw UsageError::conflict("backend nccl", "this LibTorch was built without NCCL",
                             "use backend gloo, or a LibTorch with CUDA");
}
#endif

using BackendType = c10d::ProcessGroup::BackendType;

struct DeviceBackend {
  c10::DeviceType device;
  BackendType type;
  Backend backend;
};

std::vector<DeviceBackend> make_backends(ProcessGroup::Setup& setup, const C10dStore& store) {
  if (setup.backend == "single") {
    const auto single = c10::make_intrusive<SingleBackend>();
    return {{c10::kCPU, BackendType::CUSTOM, single}, {c10::kCUDA, BackendType::CUSTOM, single}};
  }
  const auto gloo = make_gloo(setup, c10::make_intrusive<c10d::PrefixStore>("cpu/", store));
  if (setup.backend != "nccl") {
    return {{c10::kCPU, BackendType::GLOO, gloo}, {c10::kCUDA, BackendType::GLOO, gloo}};
  }
  const auto nccl = make_nccl(setup, c10::make_intrusive<c10d::PrefixStore>("cuda/", store));
  return {{c10::kCPU, BackendType::GLOO, gloo}, {c10::kCUDA, BackendType::NCCL, nccl}};
}

}  // namespace

void set_backends(c10d::ProcessGroup& group, ProcessGroup::Setup& setup, const C10dStore& store) {
  const auto backends = make_backends(setup, store);
  group.setDefaultBackend(backends.back().type);
  for (const auto& [device, type, backend] : backends) group.setBackend(device, type, backend);
}

}  // namespace ladder
