// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <deque>
#include <limits>
#include <mutex>
#include <string_view>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace fake_cuda {
namespace {

// So far may a GPU lag behind: older copies are done.
constexpr std::size_t kMaxPending = 64;

// A copy that the host has not waited for.
struct Pending {
  c10::DeviceIndex device;
  std::uint64_t number;
  at::Tensor source;    // pinned memory, if to the device
  std::size_t hash;     // of its bytes at the time of the call
  at::Tensor target;    // memory of the host, if from the device
  at::Tensor contents;  // what arrives there
};

struct Queue {
  std::mutex mutex;
  std::deque<Pending> pending;
  std::uint64_t copies = 0;
};

Queue& queue() {
  static auto& all = *new Queue;  // outlives every destructor
  return all;
}

std::size_t hash_of(const at::Tensor& t) {
  const auto* bytes = static_cast<const char*>(t.const_data_ptr());
  return std::hash<std::string_view>()({bytes, t.nbytes()});
}

void poison(const at::Tensor& t, const at::Tensor& contents) {
  if (t.is_floating_point()) {
    t.fill_(std::numeric_limits<double>::quiet_NaN());
  } else if (t.scalar_type() == at::kBool) {
    t.copy_(contents.logical_not());
  } else {
    t.fill_(
        static_cast<std::int64_t>(0xA5A5A5A5A5A5A5A5 & ((1ULL << (8 * t.element_size() - 1)) - 1)));
  }
}

void arrive(const Pending& copy) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (copy.target.defined()) copy.target.copy_(copy.contents);
  TORCH_CHECK(!copy.source.defined() || hash_of(copy.source) == copy.hash,
              "fake_cuda: pinned memory was overwritten before its non-blocking copy to the device "
              "was known to be done: ",
              copy.source.toString(), " ", copy.source.sizes());
}

void defer(Pending copy) {
  auto& all = queue();
  const std::lock_guard lock(all.mutex);
  copy.number = ++all.copies;
  all.pending.push_back(std::move(copy));
  if (all.pending.size() <= kMaxPending) return;
  const Pending oldest = std::move(all.pending.front());
  all.pending.pop_front();
  arrive(oldest);
}

at::Tensor same_memory(const at::Tensor& t) {
  return with_geometry(t.storage(), c10::DispatchKey::CPU, t);
}

// The memory of the host that a GPU could read or write as it is. Otherwise LibTorch goes by way of
// a temporary tensor, which is pageable.
bool is_plain_and_pinned(const at::Tensor& host, const at::Tensor& other) {
  return is_pinned(host.storage().data()) && host.dtype() == other.dtype() &&
         host.is_non_overlapping_and_dense() && host.strides() == other.strides();
}

void copy_with_host(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const bool to_device = is_on_gpu(to);
  const auto& host = to_device ? from : to;
  const bool pinned = is_plain_and_pinned(host, to_device ? to : from);
  const auto device = (to_device ? to : from).device().index();
  if (!to_device || !pinned || !non_blocking) refuse_in_capture();
  const std::string kind = std::string(to_device ? "to_device." : "to_host.") +
                           (pinned ? "pinned." : "pageable.") +
                           (non_blocking ? "non_blocking" : "blocking");
  count_copy(kind, !pinned);
  if (!non_blocking) {
    host_view(to).copy_(host_view(from));
    return synchronize("copy." + kind, device);
  }
  if (!to_device) {
    const auto contents = host_view(from).clone();
    poison(to, contents);
    return defer({device, 0, {}, 0, same_memory(to), contents});
  }
  host_view(to).copy_(from);
  if (!pinned || from.numel() == 0) return;
  defer({device, 0, same_memory(from), hash_of(from), {}, {}});
}

}  // namespace

void copy_tensor(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (to.numel() == 0) return;
  if (is_captured()) {
    before_write(to);
    record([to = alias_of(to), from = alias_of(from)] { host_view(to).copy_(host_view(from)); });
  }
  if (!is_on_gpu(from) || !is_on_gpu(to)) return copy_with_host(to, from, non_blocking);
  if (to.device() == from.device()) {
    count_kernel("aten::copy_", to.device());
  } else {
    count_copy("between_devices", /*pageable=*/false);
  }
  host_view(to).copy_(host_view(from));
}

void finish_copies(c10::DeviceIndex device, std::uint64_t mark) {
  auto& all = queue();
  const std::lock_guard lock(all.mutex);
  std::vector<Pending> done;
  std::erase_if(all.pending, [&](const Pending& copy) {
    const bool is_done = copy.device == device && copy.number <= mark;
    if (is_done) done.push_back(copy);
    return is_done;
  });
  for (const auto& copy : done) arrive(copy);
}

void synchronize(const std::string& cause, c10::DeviceIndex device) {
  synchronize(cause, device, copies_so_far());
}

void synchronize(const std::string& cause, c10::DeviceIndex device, std::uint64_t mark) {
  refuse_in_capture();
  count_sync(cause);
  finish_copies(device, mark);
}

std::uint64_t copies_so_far() {
  const std::lock_guard lock(queue().mutex);
  return queue().copies;
}

}  // namespace fake_cuda
