// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

// A stand-in for CUDA: cuda:0 and cuda:1 on a machine without a GPU. Built as libfake_cuda.so,
// which LD_PRELOAD adds to a program that is linked to LibTorch's CPU part alone (CMake preset
// fake-cuda). The program is not changed, and does not include this header.
//
// Memory:    A device pointer is the start of a mapping that no thread may touch, so host code that
//            reads it ends by SIGSEGV. The bytes are elsewhere; only host_view finds them.
// Operators: They run on the CPU's kernels, in the order of the calls. A call that mixes devices
//            raises the error of a GPU.
// Copies:    A non-blocking copy to the host arrives at the next synchronisation: until then the
//            host reads poison (NaN, or 0xA5 in each byte). A non-blocking copy from pinned memory
//            fails at the next synchronisation if the host has changed the source since.
// Graphs:    A capture records the operators and then undoes what they wrote; a replay runs them on
//            the same memory, and counts as one kernel. A wait, or a copy of the host's memory but
//            from pinned, fails in a capture.
// Counts:    Kernels by operator, copies by kind, synchronisations by cause.
//
// What it does not have: streams that run side by side, NCCL, cuDNN, TF32, the rounding of a GPU.
//
// Environment:
//   FAKE_CUDA_DEVICES   number of GPUs, 0 to 8 (default 2)
//   FAKE_CUDA_REPORT    a file to which each process appends its counts at its end, a line of JSON
//   FAKE_CUDA_STACKS    if set, a stack trace on standard error for each synchronisation and each
//                       copy from or to pageable memory
namespace fake_cuda {

constexpr auto kType = c10::DeviceType::CUDA;
constexpr auto kKey = c10::DispatchKey::CUDA;

// ---- device.cpp
c10::DeviceIndex machine_device_count();
c10::DeviceIndex device_count();  // those that CUDA_VISIBLE_DEVICES selects
c10::DeviceIndex current_device();
inline bool is_on_gpu(const at::Tensor& t) { return t.defined() && t.device().type() == kType; }

// The generator of the CPU that stands for the next draws of `device`, or of its generator `own`.
at::Generator next_draws(c10::DeviceIndex device, const std::optional<at::Generator>& own = {});

// ---- memory.cpp
c10::Allocator& device_allocator();
c10::Allocator& pinned_allocator();
bool is_pinned(const void* data);
// A tensor of the CPU with the same bytes and geometry; one of the CPU itself as it is.
at::Tensor host_view(const at::Tensor& t);
// A tensor on `storage` with geometry and type of `like`.
at::Tensor with_geometry(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like);
at::Tensor empty_on(c10::Device device, at::IntArrayRef sizes, at::IntArrayRef strides,
                    at::ScalarType dtype);
// Gives `t` these sizes, and more memory if they need it.
void resize_to(const at::Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides);

// ---- copies.cpp
void copy_tensor(const at::Tensor& to, const at::Tensor& from, bool non_blocking);
// The host waits for `device`: its pending copies end, and `cause` is counted.
void synchronize(const std::string& cause, c10::DeviceIndex device);
// An event: those end that were pending at `mark`, a result of copies_so_far.
void synchronize(const std::string& cause, c10::DeviceIndex device, std::uint64_t mark);
void finish_copies(c10::DeviceIndex device, std::uint64_t mark);  // without a wait
std::uint64_t copies_so_far();

// ---- operators.cpp
// Any operator, by the CPU's kernel on views of the same bytes.
void run_on_cpu(const c10::OperatorHandle& op, c10::Stack* stack);

// ---- graphs.cpp
bool is_captured();  // whether a capture is in progress
bool is_replayed();
// Records work of a capture. `written`: what it writes; the graph keeps its memory.
void record(std::function<void()> work);
void before_write(const at::Tensor& t);     // in a capture: keeps the bytes, to undo the write
void made_in_capture(const at::Tensor& t);  // its bytes are lost at the end of a capture
// `t` as it is now, on the same memory.
at::Tensor alias_of(const at::Tensor& t);
// Fails in a capture.
void refuse_in_capture();

// ---- counters.cpp
void count_kernel(const std::string& name, c10::Device device);
void count_copy(const std::string& kind, bool pageable);
void count_sync(const std::string& cause);

// Of this process so far. The rest of this file is hidden in the library; a test may link to this.
struct Counts {
  std::map<std::string, std::int64_t> kernels;  // by operator, such as aten::add.Tensor
  std::map<std::string, std::int64_t> devices;  // kernels, by device
  std::map<std::string, std::int64_t> copies;   // by kind, such as to_device.pinned.non_blocking
  std::map<std::string, std::int64_t> syncs;    // by cause, such as item
};
[[gnu::visibility("default")]] Counts counts();

}  // namespace fake_cuda
