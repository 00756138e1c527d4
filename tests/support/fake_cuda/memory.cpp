// SPDX-License-Identifier: Apache-2.0
#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace fake_cuda {
namespace {

constexpr std::size_t kPage = 4096;

struct Block {
  void* handle;  // what data_ptr() returns: PROT_NONE
  char* bytes;
  std::size_t size;
};

void free_block(void* context) {
  if (context == nullptr) return;
  auto* block = static_cast<Block*>(context);
  ::munmap(block->handle, block->size);
  c10::free_cpu(block->bytes);
  delete block;
}

const Block* block_of(const c10::Storage& storage) {
  return static_cast<const Block*>(storage.data_ptr().get_context());
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kType, current_device());
    if (bytes == 0) return {nullptr, nullptr, &free_block, device};
    const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
    void* handle =
        ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(handle != MAP_FAILED, "fake_cuda: no address space for ", size, " bytes");
    auto* block = new Block{handle, static_cast<char*>(c10::alloc_cpu(size)), size};
    std::memset(block->bytes, 0xA5, size);  // a GPU's memory is not zero either
    return {handle, block, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) const override {
    TORCH_CHECK(false, "fake_cuda: copy_data");
  }
};

// Page-locked memory is plain memory whose addresses are registered.
std::mutex pinned_mutex;
std::map<const char*, std::size_t>& pinned() {
  static auto& all = *new std::map<const char*, std::size_t>;  // outlives every destructor
  return all;
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::size_t size = std::max<std::size_t>(bytes, 1);
    auto* data = static_cast<char*>(c10::alloc_cpu(size));
    const std::lock_guard lock(pinned_mutex);
    pinned()[data] = size;
    return {data, data, &release, c10::kCPU};
  }
  static void release(void* data) {
    const std::lock_guard lock(pinned_mutex);
    pinned().erase(static_cast<char*>(data));
    c10::free_cpu(data);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

void grow(const c10::Storage& storage, std::size_t bytes) {
  const c10::DeviceGuard guard(storage.device());
  auto fresh = device_allocator().allocate(bytes);
  const auto* from = block_of(storage);
  auto* to = static_cast<Block*>(fresh.get_context());
  if (from != nullptr && to != nullptr) {
    std::memcpy(to->bytes, from->bytes, std::min(bytes, storage.nbytes()));
  }
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

}  // namespace

c10::Allocator& device_allocator() {
  static DeviceAllocator allocator;
  return allocator;
}

c10::Allocator& pinned_allocator() {
  static PinnedAllocator allocator;
  return allocator;
}

bool is_pinned(const void* data) {
  const std::lock_guard lock(pinned_mutex);
  const auto* address = static_cast<const char*>(data);
  auto after = pinned().upper_bound(address);
  if (after == pinned().begin()) return false;
  --after;
  return address < after->first + after->second;
}

at::Tensor with_geometry(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(key), like.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return result;
}

at::Tensor host_view(const at::Tensor& t) {
  if (!is_on_gpu(t)) return t;
  const auto* block = block_of(t.storage());
  c10::DataPtr bytes(
      block == nullptr ? nullptr : block->bytes, new c10::Storage(t.storage()),
      [](void* owner) { delete static_cast<c10::Storage*>(owner); }, c10::kCPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(), std::move(bytes),
                       c10::GetAllocator(c10::kCPU), /*resizable=*/true);
  return with_geometry(std::move(storage), c10::DispatchKey::CPU, t);
}

at::Tensor empty_on(c10::Device device, at::IntArrayRef sizes, at::IntArrayRef strides,
                    at::ScalarType dtype) {
  const c10::DeviceGuard guard(device.has_index() ? device : c10::Device(kType, current_device()));
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator(),
                                           c10::DispatchKeySet(kKey), dtype);
}

void resize_to(const at::Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides) {
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  if (t.numel() == 0) return;
  std::int64_t last = t.storage_offset();
  for (std::size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  const std::size_t bytes = static_cast<std::size_t>((last + 1) * t.element_size());
  if (bytes > t.storage().nbytes()) grow(t.storage(), bytes);
}

}  // namespace fake_cuda
