// SPDX-License-Identifier: Apache-2.0
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Utils.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace fake_cuda {
namespace {

constexpr c10::DeviceIndex kMaxDevices = 8;
constexpr int kPooledStreams = 32;
thread_local c10::DeviceIndex current = 0;
thread_local std::array<c10::StreamId, kMaxDevices> current_stream = {};

c10::DeviceIndex or_current(c10::DeviceIndex index) { return index < 0 ? current : index; }

std::size_t slot(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < device_count(),
              "CUDA error: invalid device ordinal: ", static_cast<int>(index));
  return static_cast<std::size_t>(index);
}

// A GPU's generator is a seed and an offset that each draw moves on; its state has 16 bytes. The
// draws themselves are those of a CPU generator with a seed made of both.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex index)
      : GeneratorImpl({kType, index}, c10::DispatchKeySet(kKey)) {}

  at::Generator next() {
    offset_ += 4;
    return at::make_generator<at::CPUGeneratorImpl>(seed_ + 0x9E3779B97F4A7C15 * offset_);
  }
  void set_current_seed(std::uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(std::uint64_t offset) override { offset_ = offset; }
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(state.numel() == kStateBytes, "RNG state is wrong size");
    const auto* words = static_cast<const std::uint64_t*>(state.data());
    seed_ = words[0];
    offset_ = words[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({kStateBytes}, at::kByte);
    auto* words = static_cast<std::uint64_t*>(state.mutable_data_ptr());
    words[0] = seed_;
    words[1] = offset_;
    return state.getIntrusivePtr();
  }

 private:
  static constexpr std::int64_t kStateBytes = 16;

  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

  std::uint64_t seed_ = c10::default_rng_seed_val;
  std::uint64_t offset_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex index) {
  static const auto all = [] {
    std::array<at::Generator, kMaxDevices> made;
    for (c10::DeviceIndex i = 0; i < kMaxDevices; ++i) {
      made[static_cast<std::size_t>(i)] = at::make_generator<Generator>(i);
    }
    return made;
  }();
  return all[slot(or_current(index))];
}

struct Event {
  std::uint64_t mark;
  c10::DeviceIndex device;
};

// Streams have names, and nothing else: all work is done in the order of the calls.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device d) const override {
    const c10::Device before(kType, current);
    setDevice(d);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current}; }
  void setDevice(c10::Device d) const override {
    slot(d.index());
    current = d.index();
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override { current = d.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  c10::Stream getDefaultStream(c10::Device d) const override { return stream(0, d); }
  c10::Stream getStream(c10::Device d) const override {
    return stream(current_stream[slot(or_current(d.index()))], d);
  }
  c10::Stream getNewStream(c10::Device d, int /*priority*/) const override {
    static std::atomic<int> made = 0;
    return stream(1 + made++ % kPooledStreams, d);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool /*high_priority*/) const override {
    return getNewStream(d, 0);
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return stream(std::exchange(current_stream[slot(s.device_index())], s.id()), s.device());
  }
  bool queryStream(const c10::Stream& /*s*/) const override { return true; }
  void synchronizeStream(const c10::Stream& s) const override {
    synchronize("stream", s.device_index());
  }
  void synchronizeDevice(c10::DeviceIndex index) const override { synchronize("device", index); }

  void record(void** event, const c10::Stream& s, c10::DeviceIndex /*index*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = {copies_so_far(), s.device_index()};
  }
  void block(void* /*event*/, const c10::Stream& /*s*/) const override {}
  bool queryEvent(void* event) const override {
    if (const auto* known = static_cast<Event*>(event)) finish_copies(known->device, known->mark);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (const auto* known = static_cast<Event*>(event)) {
      synchronize("event", known->device, known->mark);
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<Event*>(event);
  }

 private:
  static c10::Stream stream(c10::StreamId id, c10::Device d) {
    return c10::Stream(c10::Stream::UNSAFE, {kType, or_current(d.index())}, id);
  }
};

struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs /*unused*/) {}
  void init() const override {}
  bool hasCUDA() const override { return device_count() > 0; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return hasCUDA(); }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  int getNumGPUs() const override { return device_count(); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex current_device() const override { return current; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { exchangeDevice(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    slot(index);
    return std::exchange(current, index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current : exchangeDevice(index);
  }
  void deviceSynchronize(c10::DeviceIndex index) const override { synchronize("device", index); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  at::Allocator* getCUDADeviceAllocator() const override { return &device_allocator(); }
  at::Device getDeviceFromPtr(void* /*data*/) const override { return {kType, current}; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(or_current(index));
  }
};

const bool allocator_is_set = [] {
  c10::SetAllocator(kType, &device_allocator(), /*priority=*/1);
  return true;
}();

}  // namespace

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

c10::DeviceIndex machine_device_count() {
  const char* wanted = std::getenv("FAKE_CUDA_DEVICES");
  if (wanted == nullptr) return 2;
  return static_cast<c10::DeviceIndex>(std::clamp(std::atoi(wanted), 0, int{kMaxDevices}));
}

c10::DeviceIndex device_count() {
  static const auto count = [] {  // as CUDA, which reads the variable once
    const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
    const auto all = machine_device_count();
    if (list == nullptr) return all;
    c10::DeviceIndex visible = 0;
    for (char* end = nullptr; visible < all; list = end + 1) {
      const long index = std::strtol(list, &end, 10);
      if (end == list || index < 0 || index >= all) break;
      ++visible;
      if (*end != ',') break;
    }
    return visible;
  }();
  return count;
}

c10::DeviceIndex current_device() { return current; }

at::Generator next_draws(c10::DeviceIndex device, const std::optional<at::Generator>& own) {
  auto generator = own ? *own : default_generator(device);
  const std::lock_guard lock(generator.mutex());
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->next();
}

}  // namespace fake_cuda

namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, fake_cuda::Hooks)  // LibTorch looks for this name
}  // namespace at
