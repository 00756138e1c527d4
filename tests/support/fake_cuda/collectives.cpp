// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/ivalue.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <utility>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"

// Collectives go by the group's backend for the CPU: Gloo, by way of the memory of the host.
namespace fake_cuda {
namespace {

using c10d::Work;

// The work of that backend, whose result is on the device.
class DeviceWork final : public Work {
 public:
  DeviceWork(c10::intrusive_ptr<Work> inner, std::vector<at::Tensor> result)
      : Work(-1, inner->retrieveOpType()), inner_(std::move(inner)), result_(std::move(result)) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return result_; }
  void synchronize() override { inner_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override { return inner_->wait(timeout); }
  void abort() override { inner_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return inner_->getFuture()->then(
        [result = result_](c10::ivalue::Future& done) {
          done.value();  // or its error
          return c10::IValue(result);
        },
        c10::ListType::ofTensors());
  }

 private:
  c10::intrusive_ptr<Work> inner_;
  std::vector<at::Tensor> result_;
};

void add_tensors(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) tensors.push_back(value.toTensor());
  if (!value.isList()) return;
  for (const c10::IValue& part : value.toListRef()) add_tensors(part, tensors);
}

void run(const c10::OperatorHandle& op, c10::Stack* stack) {
  refuse_in_capture();  // Gloo waits for the device
  // The first argument: what the collective writes, but for sends.
  std::vector<at::Tensor> result;
  add_tensors((*stack)[stack->size() - op.schema().arguments().size()], result);
  run_on_cpu(op, stack);
  auto& work = stack->back();
  if (!work.isCustomClass()) return;
  work = c10::intrusive_ptr<Work>(
      c10::make_intrusive<DeviceWork>(work.toCustomClass<Work>(), std::move(result)));
}

// They replace kernels of LibTorch's CPU part, which would look for Gloo's CUDA part. The
// dispatcher warns of that.
const auto registered = [] {
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  } silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  torch::Library library(torch::Library::IMPL, "c10d", kKey, __FILE__, __LINE__);
  for (const char* name :
       {"allreduce_", "allreduce_coalesced_", "broadcast_", "allgather_", "_allgather_base_",
        "gather_", "scatter_", "reduce_", "reduce_scatter_", "_reduce_scatter_base_", "alltoall_",
        "alltoall_base_", "send", "recv_"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
  }
  return library;
}();

}  // namespace
}  // namespace fake_cuda
