// SPDX-License-Identifier: Apache-2.0
#include "ladder/shm/shared_memory_backend.h"

#include <ATen/core/ivalue.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ladder/comm/backends.h"
#include "ladder/comm/gloo_backend.h"
#include "ladder/comm/sent_bytes.h"
#include "ladder/core/tensor_form.h"
#include "ladder/shm/shared_memory.h"

namespace ladder {
namespace {

using Tensors = std::vector<at::Tensor>;
using C10dWork = c10::intrusive_ptr<c10d::Work>;

constexpr const char* kName = "shm";
constexpr std::int64_t kFew = 4096;  // elements

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

// A send or recv that was started. It outlives the group.
class TransferWork : public c10d::Work {
 public:
  TransferWork(std::shared_ptr<SharedMemory> memory, SharedMemory::Transfer transfer,
               std::chrono::milliseconds timeout)
      : memory_(std::move(memory)),
        transfer_(memory_->start(std::move(transfer))),
        timeout_(timeout) {}

  bool isCompleted() override { return memory_->has_ended(*transfer_); }
  bool wait(std::chrono::milliseconds timeout) override {
    memory_->wait(transfer_, timeout == kNoTimeout ? timeout_ : timeout);
    return true;
  }

 private:
  std::shared_ptr<SharedMemory> memory_;
  std::shared_ptr<SharedMemory::Transfer> transfer_;
  std::chrono::milliseconds timeout_;
};

// Gloo, except that what ProcessGroup sends uses shared memory. Collectives block, also with
// async_op; those of several threads run one at a time.
class GlooAndSharedMemory : public Gloo, public SharesTensors {
 public:
  GlooAndSharedMemory(const C10dStore& store, const ProcessGroup::Setup& setup,
                      std::unique_ptr<SharedMemory> memory)
      : Gloo(store, setup), memory_(std::move(memory)) {}

  // Moves `tensor` to memory that all ranks map, where collectives work in place. A collective.
  void share(const at::Tensor& tensor) override {
    constexpr std::size_t kPage = 4096;
    if (tensor.nbytes() <= SharedMemory::kChunkBytes) return;
    const auto stride = (tensor.nbytes() + kPage - 1) / kPage * kPage;
    auto memory = memory_->allocate(stride, this->timeout());
    if (!memory) return;
    const std::lock_guard lock(shared_mutex_);
    std::erase_if(shared_, [](const auto& entry) { return entry.tensor.expired(); });
    shared_.push_back({c10::weak_intrusive_ptr(tensor.getIntrusivePtr()), memory.get(), stride,
                       ++shared_so_far_});
    auto* const own = memory.get() + static_cast<std::size_t>(getRank()) * stride;
    std::memcpy(own, tensor.const_data_ptr(), tensor.nbytes());
    using Owner = std::shared_ptr<std::byte>;
    const auto release = [](void* owner) { delete static_cast<Owner*>(owner); };
    tensor.storage().set_data_ptr_noswap({own, new Owner(std::move(memory)), release, at::kCPU});
  }

  C10dWork broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
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

  C10dWork allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const auto op = options.reduceOp.op_;
    if (!name_of(op) || !is_shareable(tensors)) {
      return Gloo::allreduce(tensors, options);
    }
    if (const auto shared = shared_of(tensors.front())) {
      return reduced_in_place(tensors, op, options.timeout, *shared);
    }
    return reduced({"all_reduce", name_of(op)}, tensors, op, options.timeout, /*here=*/true);
  }

  C10dWork reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const auto op = options.reduceOp.op_;
    if (!name_of(op) || !is_shareable(tensors)) return ProcessGroupGloo::reduce(tensors, options);
    return reduced({"reduce", fmt::format("{} to rank {}", name_of(op), options.rootRank)}, tensors,
                   op, options.timeout, getRank() == options.rootRank);
  }

  C10dWork allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::AllgatherOptions& options) override {
    // Gloo reports outputs that do not fit.
    if (!is_shareable(inputs) || !have_room(outputs, inputs.front())) {
      return ProcessGroupGloo::allgather(outputs, inputs, options);
    }
    return gathered({"all_gather", ""}, outputs.front(), inputs.front(), options.timeout);
  }

  C10dWork _allgather_base(at::Tensor& output, at::Tensor& input,
                           const c10d::AllgatherOptions& options) override {
    if (!is_shareable({input}) || !output.is_contiguous() ||
        !fits(output, input, input.numel() * getSize())) {
      return ProcessGroupGloo::_allgather_base(output, input, options);
    }
    if (const auto shared = shared_of(output)) {
      return gathered_in_place(output, input, options.timeout, *shared);
    }
    const at::AutoDispatchBelowADInplaceOrView plain;
    return gathered({"all_gather", ""}, output.view({getSize(), -1}).unbind(0), input,
                    options.timeout);
  }

  C10dWork gather(std::vector<Tensors>& outputs, Tensors& inputs,
                  const c10d::GatherOptions& options) override {
    const bool here = getRank() == options.rootRank;
    if (!is_shareable(inputs) || (here && !have_room(outputs, inputs.front()))) {
      return ProcessGroupGloo::gather(outputs, inputs, options);
    }
    return gathered({"gather", fmt::format("to rank {}", options.rootRank)},
                    here ? outputs.front() : Tensors(), inputs.front(), options.timeout);
  }

  C10dWork _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override {
    const auto op = options.reduceOp.op_;
    if (!name_of(op) || !is_shareable({input}) || !output.is_contiguous() ||
        !fits(output, input, output.numel()) || output.numel() * getSize() != input.numel()) {
      return ProcessGroupGloo::_reduce_scatter_base(output, input, options);
    }
    const at::AutoDispatchBelowADInplaceOrView plain;
    const auto whole =
        output.is_alias_of(input) ? input.clone(at::MemoryFormat::Contiguous) : input.contiguous();
    reduce({.operation = "reduce_scatter", .form = name_of(op), .rows = true}, whole, op,
           options.timeout, output.view(-1));
    return completed({output});
  }

  // Gloo refuses tensors that are not contiguous.
  C10dWork send(Tensors& tensors, int to, int tag) override {
    if (!is_contiguous(tensors)) return ProcessGroupGloo::send(tensors, to, tag);
    if (!is_shareable(tensors)) return Gloo::send(tensors, to, tag);
    return transfer(tensors.front(), to, tag, /*sends=*/true);
  }

  C10dWork recv(Tensors& tensors, int from, int tag) override {
    if (!is_contiguous(tensors)) return ProcessGroupGloo::recv(tensors, from, tag);
    if (!is_shareable(tensors)) return Gloo::recv(tensors, from, tag);
    return transfer(tensors.front(), from, tag, /*sends=*/false);
  }

  void abort() override { memory_->abort(); }

  C10dWork barrier(const c10d::BarrierOptions& options) override {
    exchange({"barrier", ""}, at::empty({0}), options.timeout, [](auto&&...) {});
    return completed({});
  }

 private:
  // With the result `here`, or on other ranks alone.
  C10dWork reduced(const SharedMemory::Call& call, const Tensors& tensors,
                   c10d::ReduceOp::RedOpType op, std::chrono::milliseconds timeout, bool here) {
    const auto& tensor = tensors.front();
    if (here && op == c10d::ReduceOp::SUM && tensor.is_contiguous() && tensor.numel() <= kFew) {
      switch (tensor.scalar_type()) {
        case at::kFloat:
          return summed<float>(call, tensors, timeout);
        case at::kDouble:
          return summed<double>(call, tensors, timeout);
        case at::kLong:
          return summed<std::int64_t>(call, tensors, timeout);
        default:
          break;
      }
    }
    const at::AutoDispatchBelowADInplaceOrView plain;
    const auto result = tensor.contiguous();
    reduce(call, result, op, timeout, here ? result.view(-1) : at::Tensor());
    if (here && !result.is_same(tensor)) tensor.copy_(result);
    return completed(tensors);
  }

  // Of few elements: their addition in LibTorch takes longer than the exchange.
  template <typename Element>
  C10dWork summed(const SharedMemory::Call& call, const Tensors& tensors,
                  std::chrono::milliseconds timeout) {
    auto* const sums = tensors.front().mutable_data_ptr<Element>();
    const auto add = [&](int rank, std::size_t offset, std::span<const std::byte> bytes) {
      auto* sum = sums + offset / sizeof(Element);
      const auto* const begin = reinterpret_cast<const Element*>(bytes.data());
      for (const auto* part = begin; part != begin + bytes.size() / sizeof(Element);
           ++part, ++sum) {
        *sum = rank == 0 ? *part : *sum + *part;
      }
    };
    exchange_bytes(call, tensors.front(), timeout, add);
    return completed(tensors);
  }

  // A tensor of each rank, in memory that all ranks map.
  struct Shared {
    c10::weak_intrusive_ptr<at::TensorImpl> tensor;  // of this rank
    std::byte* memory;                               // lives as long as the tensor
    std::size_t stride;                              // bytes per rank
    int number;                                      // equal on all ranks
  };

  std::optional<Shared> shared_of(const at::Tensor& tensor) const {
    const std::lock_guard lock(shared_mutex_);
    const auto found = std::ranges::find_if(shared_, [&](const auto& entry) {
      return entry.tensor.lock().get() == tensor.unsafeGetTensorImpl();
    });
    return found == shared_.end() ? std::nullopt : std::optional(*found);
  }

  // Each rank sums a range of the elements and writes it to the tensors of all. That takes half of
  // the traffic of pieces that are copied to a slot and back.
  C10dWork reduced_in_place(const Tensors& tensors, c10d::ReduceOp::RedOpType op,
                            std::chrono::milliseconds timeout, const Shared& shared) {
    const auto& tensor = tensors.front();
    const std::int64_t ranks = getSize(), elements = tensor.numel();
    const auto piece = static_cast<std::int64_t>(SharedMemory::kChunkBytes / tensor.itemsize());
    const auto last = elements * (getRank() + 1) / ranks;
    const auto sum_own_range = [&](const Tensors& parts) {
      for (auto begin = elements * getRank() / ranks; begin < last; begin += piece) {
        Tensors pieces;
        for (const auto& part : parts) {
          pieces.push_back(part.narrow(0, begin, std::min(piece, last - begin)));
        }
        auto& sum = pieces.front();
        for (std::size_t i = 1; i < pieces.size(); ++i) apply(op, sum, sum, pieces[i]);
        for (std::size_t i = 1; i < pieces.size(); ++i) pieces[i].copy_(sum);
      }
    };
    in_place({"all_reduce", name_of(op)}, tensor, timeout, shared, sum_own_range);
    count_sent_bytes(static_cast<std::int64_t>(tensor.nbytes()));
    return completed(tensors);
  }

  // Each rank writes its range to the tensors of the others.
  C10dWork gathered_in_place(const at::Tensor& output, const at::Tensor& input,
                             std::chrono::milliseconds timeout, const Shared& shared) {
    const auto write_own_range = [&](const Tensors& parts) {
      for (const auto& part : parts) {
        auto range = part.narrow(0, getRank() * input.numel(), input.numel());
        if (range.const_data_ptr() != input.const_data_ptr()) range.copy_(input.view(-1));
      }
    };
    in_place({"all_gather", ""}, output, timeout, shared, write_own_range);
    count_sent_bytes(static_cast<std::int64_t>(input.nbytes()));
    return completed({output});
  }

  // Runs `write` on all ranks, while no rank uses its `tensor` for anything else.
  template <typename Write>
  void in_place(SharedMemory::Call call, const at::Tensor& tensor,
                std::chrono::milliseconds timeout, const Shared& shared, const Write& write) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    Tensors parts;
    for (int rank = 0; rank < getSize(); ++rank) {
      auto* const part = shared.memory + static_cast<std::size_t>(rank) * shared.stride;
      parts.push_back(torch::from_blob(part, {tensor.numel()}, tensor.options()));
    }
    call.form += fmt::format("{}memory {}", call.form.empty() ? "" : ", ", shared.number);
    const auto uninterrupted = memory_->hold();
    const auto meet = [&] { exchange(call, tensor.new_empty({0}), timeout, [](auto&&...) {}); };
    meet();
    write(parts);
    meet();
  }

  // `result` gets `input`, or of rows this rank's, reduced; undefined = none.
  void reduce(const SharedMemory::Call& call, const at::Tensor& input, c10d::ReduceOp::RedOpType op,
              std::chrono::milliseconds timeout, const at::Tensor& result) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    at::Tensor first;  // rank 0's piece; the others are of the same place
    const auto consume = [&](int rank, at::Tensor piece, std::int64_t offset) {
      if (!result.defined()) return;
      const auto count = call.rows ? piece.numel() / getSize() : piece.numel();
      if (call.rows && rank == getRank()) {
        piece = input.view(-1).narrow(0, rank * result.numel() + offset, count);
      } else if (call.rows) {
        piece = piece.narrow(0, getRank() * count, count);
      }
      auto part = range_of(result, offset, count);
      if (rank == 0) {
        first = piece;
        if (getSize() == 1) part.copy_(piece);
        return;
      }
      apply(op, part, rank == 1 ? first : part, piece);
    };
    exchange(call, input, timeout, consume);
  }

  // Transfers keep their order, so tags that differ are an error. A number is a tensor of
  // one: PyTorch's pipelines receive it as such.
  C10dWork transfer(const at::Tensor& tensor, int peer, int tag, bool sends) {
    SharedMemory::Transfer transfer{
        .peer = peer,
        .sends = sends,
        .form = TensorForm::of_values(at::atleast_1d(tensor)).text(),
        .bytes = {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()},
        .owner = std::make_shared<at::Tensor>(tensor)};
    if (tag != 0) transfer.form += fmt::format(", tag {}", tag);
    return c10::make_intrusive<TransferWork>(memory_, std::move(transfer), this->timeout());
  }

  // `all`: empty where nothing is to be received.
  C10dWork gathered(const SharedMemory::Call& call, const Tensors& all, const at::Tensor& input,
                    std::chrono::milliseconds timeout) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    Tensors rows;
    for (const auto& tensor : all) rows.push_back(tensor.contiguous());
    const auto consume = [&](int rank, const at::Tensor& piece, std::int64_t begin) {
      if (all.empty()) return;
      rows[static_cast<std::size_t>(rank)].view(-1).narrow(0, begin, piece.numel()).copy_(piece);
    };
    exchange(call, input.contiguous(), timeout, consume);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!rows[i].is_same(all[i])) all[i].copy_(rows[i]);
    }
    return completed(all);
  }

  // Equal on all ranks.
  static bool is_shareable(const Tensors& tensors) {
    return tensors.size() == 1 && tensors.front().is_cpu() &&
           tensors.front().layout() == torch::kStrided;
  }

  static bool is_contiguous(const Tensors& tensors) {
    return tensors.size() == 1 && tensors.front().is_contiguous();
  }

  // Gloo reports an output that does not fit.
  static bool fits(const at::Tensor& output, const at::Tensor& input, std::int64_t elements) {
    return output.numel() == elements && output.scalar_type() == input.scalar_type() &&
           output.is_cpu();
  }

  bool have_room(const std::vector<Tensors>& outputs, const at::Tensor& input) const {
    return outputs.size() == 1 && outputs.front().size() == static_cast<std::size_t>(getSize()) &&
           std::ranges::all_of(outputs.front(), [&](const auto& output) {
             return fits(output, input, input.numel());
           });
  }

  static at::Tensor range_of(const at::Tensor& flat, std::int64_t begin, std::int64_t count) {
    return count == flat.numel() ? flat : flat.narrow(0, begin, count);  // which takes 0.2 us
  }

  // Null: for Gloo.
  static const char* name_of(c10d::ReduceOp::RedOpType op) {
    if (op == c10d::ReduceOp::SUM) return "sum";
    if (op == c10d::ReduceOp::MIN) return "min";
    return op == c10d::ReduceOp::MAX ? "max" : nullptr;
  }

  static void apply(c10d::ReduceOp::RedOpType op, at::Tensor& result, const at::Tensor& left,
                    const at::Tensor& right) {
    if (op == c10d::ReduceOp::SUM) {
      at::add_out(result, left, right);
    } else if (op == c10d::ReduceOp::MIN) {
      at::minimum_out(result, left, right);
    } else {
      at::maximum_out(result, left, right);
    }
  }

  template <typename ConsumePiece>
  void exchange(const SharedMemory::Call& call, const at::Tensor& own,
                std::chrono::milliseconds timeout, const ConsumePiece& consume) {
    const auto size = static_cast<std::size_t>(own.element_size());
    const auto consume_bytes = [&](int rank, std::size_t offset, std::span<const std::byte> bytes) {
      const auto piece =
          at::from_blob(const_cast<std::byte*>(bytes.data()),
                        {static_cast<std::int64_t>(bytes.size() / size)}, own.options());
      consume(rank, piece, static_cast<std::int64_t>(offset / size));
    };
    exchange_bytes(call, own, timeout, consume_bytes);
  }

  void exchange_bytes(SharedMemory::Call call, const at::Tensor& own,
                      std::chrono::milliseconds timeout, const SharedMemory::Consume& consume) {
    if (!call.form.empty()) call.form += ", ";
    call.form += own.dtype().name();
    memory_->exchange(call, {static_cast<const std::byte*>(own.const_data_ptr()), own.nbytes()},
                      consume, timeout == c10d::kUnsetTimeout ? this->timeout() : timeout);
  }

  std::shared_ptr<SharedMemory> memory_;
  mutable std::mutex shared_mutex_;  // of the next two
  std::vector<Shared> shared_;
  int shared_so_far_ = 0;
};

// More ranks than that have the sums of Gloo's ring, which moves less, unless they name this one.
bool share_a_machine(const ProcessGroupOptions& options, const LaunchEnvironment& launch) {
  constexpr int kMaxByItself = 8;
  return options.backend == kName || (launch.is_single_node() && launch.world_size <= kMaxByItself);
}

DeviceBackends make_shared_memory(ProcessGroup::Setup& setup, const C10dStore& store) {
  if (auto backend = make_shared_memory_backend(setup, store)) return {backend, backend};
  setup.backend = "gloo";
  return find_backend(setup.backend).make(setup, store);
}

UsageError refused(const ProcessGroupOptions& /*options*/, const LaunchEnvironment& launch) {
  return no_common_memory("backend shm", launch.world_size,
                          "use backend gloo, or auto, which selects it");
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_shared_memory_backend(const ProcessGroup::Setup& setup,
                                                             const C10dStore& store) {
  auto memory =
      SharedMemory::make(setup.rank, setup.world_size,
                         all_gather_in(store, "shared_memory", setup.rank, setup.world_size));
  if (!memory) return {};
  return c10::make_intrusive<GlooAndSharedMemory>(store, setup, std::move(memory));
}

UsageError no_common_memory(const std::string& backend, int world_size,
                            const std::string& instead) {
  return UsageError::conflict(
      backend, fmt::format("{} ranks that do not share one machine's memory", world_size),
      fmt::format(
          "{}; up to {} ranks of one user can share memory, all outside containers or all in "
          "the same one",
          instead, SharedMemory::kMaxRanks));
}

}  // namespace ladder

extern "C" const bool ladder_shared_memory_backend;
const bool ladder_shared_memory_backend = ladder::add_backend(
    {ladder::kName, ladder::share_a_machine, ladder::make_shared_memory, ladder::refused},
    "on one machine");
