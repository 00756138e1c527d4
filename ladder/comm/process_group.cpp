// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/process_group.h"

#include <ATen/MemoryOverlap.h>
#include <fmt/core.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "ladder/comm/c10d_group.h"
#include "ladder/comm/errors.h"
#include "ladder/comm/texts.h"
#include "ladder/core/error.h"
#include "ladder/core/tensor_form.h"
#include "ladder/launch/failure_kind.h"

namespace ladder {

struct ProcessGroup::Impl {
  explicit Impl(Setup options) : setup(std::move(options)), group(make_c10d_group(setup)) {}
  ~Impl() { stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Errors have no effect: the group is gone either way.
  void stop() noexcept {
    try {
      const bool failed = std::uncaught_exceptions() > 0;
      failed ? group->abort() : group->shutdown();
    } catch (const std::exception&) {
      return;
    }
  }

  Setup setup;
  C10dGroup group;
  std::int64_t barriers = 0;  // monitored ones; each has its own keys in the store
};

struct C10dAccess {
  static C10dGroup group(const ProcessGroup& group) { return group.impl_->group; }
};

C10dGroup c10d_group(const ProcessGroup& group) { return C10dAccess::group(group); }

namespace {

// A sum of flags is their maximum: Gloo would write 2 into a flag.
c10d::ReduceOp c10d_op(ReduceOp op, const torch::Tensor& tensor) {
  if (op == ReduceOp::kMin) return c10d::ReduceOp::MIN;
  const bool is_maximum = op == ReduceOp::kMax || tensor.scalar_type() == torch::kBool;
  return is_maximum ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
}

void require_dense(const torch::Tensor& tensor) {
  if (tensor.defined() && tensor.layout() == torch::kStrided) return;
  throw UsageError::malformed("collective", "a dense tensor",
                              tensor.defined() ? "a sparse one" : "an undefined one",
                              "every rank passes a tensor: torch::zeros where it has no values, "
                              "tensor.to_dense() of a sparse one");
}

// The elements of `tensor` in row-major order, as c10d needs them: it sends memory, whatever the
// strides, and whether that is to be conjugated or negated.
torch::Tensor row_major(const torch::Tensor& tensor) {
  require_dense(tensor);
  return tensor.resolve_conj().resolve_neg().contiguous();
}

// The same of a tensor for the result. Elements that share their memory cannot take one, which is
// an error on this rank alone, so it comes first.
torch::Tensor in_row_major_order(const torch::Tensor& tensor) {
  require_dense(tensor);
  at::assert_no_internal_overlap(tensor);
  return row_major(tensor);
}

// `tensor` may be a parameter.
void copy_back(const torch::Tensor& result, torch::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  if (!result.is_same(tensor)) tensor.copy_(result);
}

// `tensor`: one of those that the collective sends. Gloo names neither it nor its dtype.
template <typename Start>
void complete(const ProcessGroup& group, const char* operation, const torch::Tensor& tensor,
              const Start& start) {
  run_collective(group, operation, [&] {
    // PyTorch's autograd would pack the arguments for kernels that its collectives do not have.
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    try {
      start()->wait();
    } catch (const std::exception& error) {
      if (message_of(error) != "Invalid scalar type") throw;
      throw UsageError::malformed(
          operation, "a dtype that Gloo sends", torch::toString(tensor.scalar_type()),
          "convert the tensor, such as tensor.to(torch::kInt32): Gloo sends float32, float64, "
          "float16, bfloat16, int8, uint8, int32, int64 and bool");
    }
  });
}

void require_other_rank(const ProcessGroup& group, const char* operation, int rank) {
  if (rank >= 0 && rank < group.world_size() && rank != group.rank()) return;
  throw UsageError::out_of_range(
      operation, rank,
      fmt::format("a rank from 0 to {} other than {}", group.world_size() - 1, group.rank()),
      "ranks count from 0; a rank does not send to itself");
}

// `tensor` with its elements in row-major order, where the backend can read them: Gloo transfers
// no memory of a GPU.
torch::Tensor for_transfer(const ProcessGroup& group, const torch::Tensor& tensor) {
  const auto rows = in_row_major_order(tensor);
  return group.backend() == "nccl" ? rows : rows.cpu();
}

void require_root(const ProcessGroup& group, const char* operation, int root) {
  if (root < 0 || root >= group.world_size()) {
    throw UsageError::out_of_range(operation, root,
                                   fmt::format("a root from 0 to {}", group.world_size() - 1),
                                   "ranks count from 0");
  }
}

torch::Tensor rows_of(const torch::Tensor& tensor) {
  require_dense(tensor);
  return tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor;
}

// `tensor` with zeros appended up to `rows` rows.
torch::Tensor padded(const torch::Tensor& tensor, std::int64_t rows) {
  if (tensor.size(0) == rows) return row_major(tensor);
  auto sizes = tensor.sizes().vec();
  sizes[0] = rows;
  auto result = torch::zeros(sizes, tensor.options());
  result.narrow(0, 0, tensor.size(0)).copy_(tensor);
  return result;
}

void cut_to(std::vector<torch::Tensor>& tensors, const std::vector<std::int64_t>& rows) {
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i] = tensors[i].narrow(0, 0, rows[i]);
}

}  // namespace

ProcessGroup::ProcessGroup(Setup setup) : impl_(std::make_shared<Impl>(std::move(setup))) {}

ProcessGroup ProcessGroup::single(std::string description) {
  Setup setup;
  setup.store = c10::make_intrusive<c10d::HashStore>();
  setup.timeout = std::chrono::seconds(60);
  setup.description = std::move(description);
  return ProcessGroup(std::move(setup));
}

int ProcessGroup::rank() const { return impl_->setup.rank; }
int ProcessGroup::world_size() const { return impl_->setup.world_size; }
int ProcessGroup::local_rank() const { return impl_->setup.local_rank; }
int ProcessGroup::local_world_size() const { return impl_->setup.local_world_size; }
const std::string& ProcessGroup::backend() const { return impl_->setup.backend; }
const std::string& ProcessGroup::description() const { return impl_->setup.description; }
std::chrono::milliseconds ProcessGroup::timeout() const { return impl_->setup.timeout; }

void ProcessGroup::all_reduce(torch::Tensor& tensor, ReduceOp op) const {
  all_reduce(tensor, op, timeout());
}

void ProcessGroup::all_reduce(torch::Tensor& tensor, ReduceOp op,
                              std::chrono::milliseconds timeout) const {
  std::vector<torch::Tensor> tensors = {in_row_major_order(tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d_op(op, tensor);
  options.timeout = timeout;
  complete(*this, "all_reduce", tensor, [&] { return impl_->group->allreduce(tensors, options); });
  copy_back(tensors.front(), tensor);
}

void ProcessGroup::reduce(torch::Tensor& tensor, int root, ReduceOp op) const {
  require_root(*this, "reduce", root);
  std::vector<torch::Tensor> tensors = {in_row_major_order(tensor)};
  c10d::ReduceOptions options;
  options.reduceOp = c10d_op(op, tensor);
  options.rootRank = root;
  complete(*this, "reduce", tensor, [&] { return impl_->group->reduce(tensors, options); });
  copy_back(tensors.front(), tensor);
}

void ProcessGroup::broadcast(torch::Tensor& tensor, int root) const {
  require_root(*this, "broadcast", root);
  std::vector<torch::Tensor> tensors = {in_row_major_order(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  complete(*this, "broadcast", tensor, [&] { return impl_->group->broadcast(tensors, options); });
  copy_back(tensors.front(), tensor);
}

// Gathers a hash of what has to be equal with them: Gloo compares no tensors.
std::vector<std::int64_t> ProcessGroup::row_counts(const char* operation,
                                                   const torch::Tensor& tensor) const {
  auto rows = TensorForm::of_values(tensor);
  rows.sizes->front() = TensorForm::kAnySize;
  const auto form = rows.text();
  const auto hash = static_cast<std::int64_t>(std::hash<std::string>{}(form));
  const auto all = all_gather_into_tensor(torch::tensor({tensor.size(0), hash}));
  std::vector<std::int64_t> counts;
  bool differ = false;
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto* const of_rank = all.const_data_ptr<std::int64_t>() + std::ptrdiff_t{2} * rank;
    counts.push_back(of_rank[0]);
    differ = differ || of_rank[1] != hash;
  }
  if (differ) {
    require_agreement(*this, operation, {form}, "only the number of rows, N, may differ");
  }
  return counts;
}

torch::Tensor ProcessGroup::all_gather_into_tensor(const torch::Tensor& tensor) const {
  require_dense(tensor);
  auto sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), world_size());
  auto all = torch::empty(sizes, tensor.options());
  all_gather_into_tensor(all, tensor);
  return all;
}

void ProcessGroup::all_gather_into_tensor(torch::Tensor& output, const torch::Tensor& input) const {
  if (output.numel() != input.numel() * world_size()) {
    throw UsageError::out_of_range("all_gather_into_tensor", output.numel(),
                                   fmt::format("{} elements", input.numel() * world_size()),
                                   "pass an output of world size times the input");
  }
  TensorForm{.dtype = input.scalar_type(), .device = input.device()}.require(
      output, "all_gather_into_tensor", "make the output with input.options()");
  const auto result = in_row_major_order(output);
  auto all = result.dim() == 1 ? result : result.view(-1);  // Gloo refuses scalars
  auto own = row_major(input).view(-1);
  if (backend() == "gloo" && own.is_alias_of(all)) {  // its all-gather needs another `output`
    for (int rank = 0; rank < world_size(); ++rank) {
      auto part = all.narrow(0, rank * own.numel(), own.numel());
      broadcast(part, rank);
    }
  } else {
    complete(*this, "all_gather", own, [&] { return impl_->group->_allgather_base(all, own); });
  }
  copy_back(result, output);
}

std::vector<torch::Tensor> ProcessGroup::all_gather(const torch::Tensor& tensor) const {
  const auto rows = rows_of(tensor);
  const auto counts = row_counts("all_gather", rows);
  const auto longest = *std::max_element(counts.begin(), counts.end());
  auto all = all_gather_into_tensor(padded(rows, longest)).unbind(0);
  cut_to(all, counts);
  return all;
}

std::vector<torch::Tensor> ProcessGroup::gather(const torch::Tensor& tensor, int root) const {
  require_root(*this, "gather", root);
  const auto rows = rows_of(tensor);
  const auto counts = row_counts("gather", rows);
  std::vector<torch::Tensor> own = {padded(rows, *std::max_element(counts.begin(), counts.end()))};
  std::vector<std::vector<torch::Tensor>> all;
  if (rank() == root) {
    auto& copies = all.emplace_back();
    for (int i = 0; i < world_size(); ++i) copies.push_back(torch::empty_like(own.front()));
  }
  c10d::GatherOptions options;
  options.rootRank = root;
  complete(*this, "gather", tensor, [&] { return impl_->group->gather(all, own, options); });
  if (rank() != root) return {};
  cut_to(all.front(), counts);
  return all.front();
}

torch::Tensor ProcessGroup::reduce_scatter(const torch::Tensor& tensor, ReduceOp op) const {
  const std::int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (rows != world_size()) {
    throw UsageError::out_of_range("reduce_scatter", rows, fmt::format("{} rows", world_size()),
                                   "pass a tensor with one row per rank");
  }
  row_counts("reduce_scatter", tensor);
  auto input = row_major(tensor).view(-1);  // Gloo divides the first dimension
  auto output = torch::empty({input.numel() / rows}, tensor.options());
  c10d::ReduceScatterOptions options;
  options.reduceOp = c10d_op(op, tensor);
  complete(*this, "reduce_scatter", tensor,
           [&] { return impl_->group->_reduce_scatter_base(output, input, options); });
  return output.view(tensor.sizes().slice(1));
}

Work ProcessGroup::isend(const torch::Tensor& tensor, int dst) const {
  require_other_rank(*this, "send", dst);
  std::vector<torch::Tensor> tensors = {for_transfer(*this, row_major(tensor))};
  const auto operation = fmt::format("send to rank {}", dst);
  c10::intrusive_ptr<c10d::Work> work;
  run_collective(*this, operation, [&] { work = impl_->group->send(tensors, dst, /*tag=*/0); });
  return Work([group = *this, work, operation, tensors] {
    run_collective(group, operation, [&] { work->wait(); });
  });
}

Work ProcessGroup::irecv(torch::Tensor& tensor, int src) const {
  require_other_rank(*this, "recv", src);
  std::vector<torch::Tensor> tensors = {for_transfer(*this, tensor)};
  const auto operation = fmt::format("recv from rank {}", src);
  c10::intrusive_ptr<c10d::Work> work;
  run_collective(*this, operation, [&] { work = impl_->group->recv(tensors, src, /*tag=*/0); });
  return Work([group = *this, work, operation, tensors, tensor]() mutable {
    run_collective(group, operation, [&] { work->wait(); });
    copy_back(tensors.front(), tensor);
  });
}

void ProcessGroup::barrier() const {
  complete(*this, "barrier", {}, [&] {
    c10d::BarrierOptions options;
    options.device = torch::kCPU;
    return impl_->group->barrier(options);
  });
}

void ProcessGroup::monitored_barrier(std::chrono::milliseconds timeout) const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_size(); ++rank) {
    keys.push_back(fmt::format("monitored_barrier/{}/{}", impl_->barriers, rank));
  }
  ++impl_->barriers;
  const auto missing = std::make_shared<std::vector<int>>();
  const auto& address = impl_->setup.address;
  run_with_deadline(timeout, address,
                    [store = impl_->setup.store, keys, timeout, address, missing, own = rank()] {
                      store->set(keys[static_cast<std::size_t>(own)], std::string("1"));
                      *missing = wait_for_keys(*store, keys, timeout, address);
                    });
  if (!missing->empty()) throw ranks_missing(*missing, world_size(), timeout);
}

void ProcessGroup::shutdown() const { impl_->stop(); }

}  // namespace ladder
