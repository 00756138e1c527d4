// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace fake_cuda {
namespace {

// ---- operators without a kernel below: the CPU's kernel on views of the same bytes

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Their GPU kernels wait for the size of the result, or for a yes or no.
constexpr std::array<std::string_view, 6> kWaiting = {"aten::nonzero",  "aten::masked_select",
                                                      "aten::_unique2", "aten::equal",
                                                      "aten::bincount", "aten::unique_consecutive"};
// They take indices of the CPU, and masks, whose true elements they count.
constexpr std::array<std::string_view, 3> kIndexing = {"aten::index", "aten::index_put_",
                                                       "aten::_index_put_impl_"};
// A GPU adds up 16-bit products in float32, and rounds the sum. The CPU's kernels for float16 are
// slow.
constexpr std::array<std::string_view, 6> kProducts = {
    "aten::convolution", "aten::convolution_backward", "aten::mm", "aten::addmm", "aten::bmm",
    "aten::baddbmm"};

bool has_16_bits(const at::Tensor& t) {
  return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16;
}

// The tensors of one call.
class Call {
 public:
  explicit Call(const c10::OperatorHandle& op)
      : name_(op.schema().name()),
        indexing_(is_one_of(kIndexing, name_)),
        product_(is_one_of(kProducts, name_)) {}

  c10::Device device() const { return device_; }
  // Of a call without tensors.
  void set_device(c10::Device device) {
    if (!has_tensors_ && device.has_index()) device_ = device;
  }

  // `t` as the kernel gets it.
  at::Tensor enter(const at::Tensor& t) {
    if (!t.defined()) return t;
    if (!is_on_gpu(t)) {
      if (t.is_cpu() && t.dim() > 0 && !indexing_) stranger_ = t.device();
      return t;
    }
    if (has_tensors_ && t.device() != device_) stranger_ = t.device();
    has_tensors_ = true;
    device_ = t.device();
    if (is_captured()) before_write(t);
    if (product_ && has_16_bits(t)) {
      narrow_ = t.scalar_type();
      seen_.emplace_back(t, host_view(t).to(at::kFloat));
    } else {
      seen_.emplace_back(t, host_view(t));
    }
    return seen_.back().second;
  }

  at::Tensor enter_index(const at::Tensor& index) {
    if (name_ == "aten::index") return enter(index);  // LibTorch has waited and copied before
    if (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte) {
      synchronize("aten::nonzero", device_.index());
    } else if (index.is_cpu()) {
      count_copy("to_device.pageable.blocking", /*pageable=*/true);
      synchronize("copy.to_device.pageable.blocking", device_.index());
    }
    return enter(index);
  }

  void require_one_device() const {
    TORCH_CHECK(!stranger_,
                "Expected all tensors to be on the same device, but found at least two "
                "devices, ",
                device_, " and ", *stranger_, "! (when checking arguments of ", name_, ")");
  }

  // A result of the kernel as the caller gets it.
  at::Tensor leave(const at::Tensor& result) const {
    if (!result.defined() || !result.is_cpu()) return result;
    for (const auto& [ours, host] : seen_) {
      if (result.is_same(host)) return ours;
    }
    for (const auto& [ours, host] : seen_) {
      const void* bytes = result.storage().data();
      if (bytes != nullptr && bytes == host.storage().data()) {
        return with_geometry(ours.storage(), kKey, result);
      }
    }
    auto copy =
        empty_on(device_, result.sizes(), result.strides(), narrow_.value_or(result.scalar_type()));
    if (result.numel() > 0) host_view(copy).copy_(result);
    return copy;
  }

  // Tensors that the kernel has resized, or got in another type.
  void write_back() const {
    for (const auto& [ours, host] : seen_) {
      if (host.sizes() != ours.sizes() || host.strides() != ours.strides()) {
        resize_to(ours, host.sizes(), host.strides());
      }
      if (host.numel() == 0 || host.storage().data() == host_view(ours).storage().data()) continue;
      host_view(ours).copy_(host);
    }
  }

 private:
  const std::string& name_;
  bool indexing_;
  bool product_;
  bool has_tensors_ = false;
  std::optional<at::ScalarType> narrow_;                 // of the result of a product in 16 bits
  std::vector<std::pair<at::Tensor, at::Tensor>> seen_;  // of the device, as the kernel sees it
  c10::Device device_{kType, current_device()};
  std::optional<c10::Device> stranger_;
};

// The arguments but generators, as the CPU's kernel takes them.
c10::IValue enter(Call& call, const c10::IValue& value) {
  if (value.isTensor()) return call.enter(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(call.enter(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
      list.push_back(t && t->defined() ? std::optional(call.enter_index(*t)) : t);
    }
    return list;
  }
  const bool nested =
      value.isList() && value.toList().elementType()->kind() == c10::TypeKind::ListType;
  if (nested) {  // c10d's all-gather and gather
    c10::List<c10::List<at::Tensor>> lists;
    for (const c10::IValue& part : value.toListRef()) {
      lists.push_back(enter(call, part).toTensorList());
    }
    return lists;
  }
  if (value.isDevice()) {
    call.set_device(value.toDevice());
    return c10::Device(c10::kCPU);
  }
  return value;
}

bool takes_generator(const c10::Argument& argument) {
  const auto* optional = argument.type()->castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

// While it exists, draws from the CPU's default generator are draws from a GPU's.
class LentGenerator {
 public:
  explicit LentGenerator(c10::DeviceIndex device) : lock_(mutex()), before_(cpu_.get_state()) {
    cpu_.set_state(next_draws(device).get_state());
  }
  ~LentGenerator() { cpu_.set_state(before_); }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  std::unique_lock<std::mutex> lock_;
  at::Generator cpu_ = at::detail::getDefaultCPUGenerator();
  at::Tensor before_;
};

// Gives a kernel that draws numbers the generator of its device, or lends it that.
std::unique_ptr<LentGenerator> set_generator(const c10::OperatorHandle& op, c10::Stack& stack,
                                             c10::DeviceIndex device) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!takes_generator(arguments[i])) continue;
    auto& value = stack[stack.size() - arguments.size() + i];
    std::optional<at::Generator> own;
    if (!value.isNone()) own = value.toGenerator();
    TORCH_CHECK(!own || own->device().type() == kType,
                "Expected a 'cuda' device type for generator but "
                "found '",
                own ? own->device() : c10::Device(kType), "' (", op.schema().name(), ")");
    value = next_draws(device, own);
    return nullptr;
  }
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return nullptr;
  return std::make_unique<LentGenerator>(device);
}

// The values with aliases of their tensors of the device.
std::vector<c10::IValue> aliases_of(c10::Stack::const_iterator begin,
                                    c10::Stack::const_iterator end) {
  std::vector<c10::IValue> all;
  for (auto value = begin; value != end; ++value) {
    if (value->isTensor()) {
      all.emplace_back(alias_of(value->toTensor()));
    } else if (value->isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value->toTensorVector()) list.push_back(alias_of(t));
      all.emplace_back(list);
    } else if (value->isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& t : value->toOptionalTensorVector()) {
        list.push_back(t ? std::optional(alias_of(*t)) : t);
      }
      all.emplace_back(list);
    } else {
      all.push_back(*value);
    }
  }
  return all;
}

std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& values) {
  std::vector<at::Tensor> all;
  for (const auto& value : values) {
    if (value.isTensor()) all.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) all.push_back(t);
    }
  }
  return all;
}

// A call of the operator as a replay makes it: the results go to the memory of those of the
// capture.
void record_call(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments,
                 const c10::Stack& stack) {
  const auto results = tensors_of(aliases_of(
      stack.end() - static_cast<std::ptrdiff_t>(op.schema().returns().size()), stack.end()));
  for (const auto& result : results) made_in_capture(result);
  record([op, arguments = std::move(arguments), results] {
    c10::Stack again = arguments;
    run_on_cpu(op, &again);
    const auto made = tensors_of(again);
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (!is_on_gpu(made[i]) || made[i].storage().data() == results[i].storage().data()) continue;
      if (made[i].numel() > 0) host_view(results[i]).copy_(host_view(made[i]));
    }
  });
}

}  // namespace

void run_on_cpu(const c10::OperatorHandle& op, c10::Stack* stack) {
  const at::AutoDispatchBelowAutograd below;
  const auto arguments_begin =
      stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  std::vector<c10::IValue> recorded;
  if (is_captured()) recorded = aliases_of(arguments_begin, stack->end());
  const auto& name = op.operator_name();
  Call call(op);
  const std::size_t first = stack->size() - op.schema().arguments().size();
  for (std::size_t i = first; i < stack->size(); ++i) (*stack)[i] = enter(call, (*stack)[i]);
  call.require_one_device();
  count_kernel(name.overload_name.empty() ? name.name : name.name + "." + name.overload_name,
               call.device());
  if (is_one_of(kWaiting, name.name)) synchronize(name.name, call.device().index());
  {
    const auto lent = set_generator(op, *stack, call.device().index());
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.write_back();
  for (std::size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = call.leave(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(call.leave(t));
      value = list;
    }
  }
  if (is_captured()) record_call(op, std::move(recorded), *stack);
}

namespace {

// ---- operators with kernels of their own

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                 std::optional<bool> /*pin_memory*/, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, &device_allocator(), c10::DispatchKeySet(kKey),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> device, std::optional<bool> /*pin_memory*/) {
  return empty_on(device.value_or(c10::Device(kType)), sizes, strides,
                  c10::dtype_or_default(dtype));
}

at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  copy_tensor(to, from, non_blocking);
  return to;
}

at::Scalar local_scalar_dense(const at::Tensor& t) {
  synchronize("item", t.device().index());
  return host_view(t).item();
}

at::Tensor like_on_meta(const at::Tensor& t, at::IntArrayRef sizes,
                        std::optional<at::MemoryFormat> format = {}) {
  return at::empty(sizes, at::TensorOptions(at::kMeta).dtype(t.dtype()), format);
}

const at::Tensor& resize_(const at::Tensor& t, at::IntArrayRef sizes,
                          std::optional<at::MemoryFormat> format) {
  resize_to(t, sizes, like_on_meta(t, sizes, format).strides());
  return t;
}

at::Tensor& set_storage(at::Tensor& t, at::Storage source, std::int64_t offset,
                        at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  const auto plain = like_on_meta(t, sizes);
  impl->set_sizes_and_strides(sizes, strides.empty() ? plain.strides() : strides, offset);
  return t;
}

// ---- registration

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("view", &at::native::view);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  // Composite kernels, which would choose a backend for this device.
  for (const char* name : {"convolution", "convolution_backward", "native_group_norm",
                           "native_layer_norm", "_foreach_norm.Scalar"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

}  // namespace
}  // namespace fake_cuda
