// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"

// The operators behind ladder/graph/device_graph.h. One capture at a time, of all threads.
namespace fake_cuda {
namespace {

struct Graph {
  std::vector<std::function<void()>> work;

  // Of the capture.
  struct Bytes {
    c10::Storage storage;
    std::vector<char> bytes;  // none: the memory is new
  };
  std::map<const void*, Bytes> before;
  at::Generator generator;
  at::Tensor generator_state;
};

std::map<std::int64_t, Graph>& graphs() {
  static auto& all = *new std::map<std::int64_t, Graph>;
  return all;
}

Graph* captured = nullptr;
bool replayed = false;

// The bytes of all of the storage.
at::Tensor bytes_of(const c10::Storage& storage) {
  auto all = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(kKey), caffe2::TypeMeta::Make<std::uint8_t>());
  all.unsafeGetTensorImpl()->set_sizes_contiguous(
      std::vector{static_cast<std::int64_t>(storage.nbytes())});
  return host_view(all);
}

void keep(const at::Tensor& t, bool is_new) {
  if (!is_on_gpu(t) || t.storage().nbytes() == 0) return;
  const auto [entry, is_first] = captured->before.try_emplace(t.storage().unsafeGetStorageImpl(),
                                                              Graph::Bytes{t.storage(), {}});
  if (!is_first || is_new) return;
  const auto bytes = bytes_of(t.storage());
  const auto* first = static_cast<const char*>(bytes.const_data_ptr());
  entry->second.bytes.assign(first, first + bytes.numel());
}

std::int64_t begin(const at::Tensor& on) {
  TORCH_CHECK(captured == nullptr, "fake_cuda: a capture in a capture");
  static std::int64_t last = 0;
  captured = &graphs()[++last];
  captured->generator = at::globalContext().defaultGenerator(on.device());
  captured->generator_state = captured->generator.get_state();
  return last;
}

// The GPU has done nothing: all memory and the generator are as before, and what is new is
// undefined.
void end(const at::Tensor& /*on*/, std::int64_t /*graph*/) {
  auto& graph = *std::exchange(captured, nullptr);
  for (const auto& [address, kept] : graph.before) {
    const auto bytes = bytes_of(kept.storage);
    auto* first = static_cast<char*>(bytes.mutable_data_ptr());
    if (kept.bytes.empty()) {
      std::memset(first, 0xA5, kept.storage.nbytes());
    } else {
      std::memcpy(first, kept.bytes.data(), std::min(kept.bytes.size(), kept.storage.nbytes()));
    }
  }
  graph.before.clear();
  graph.generator.set_state(graph.generator_state);
}

void replay(const at::Tensor& on, std::int64_t graph) {
  count_kernel("ladder::graph_replay", on.device());
  replayed = true;
  const at::AutoDispatchBelowADInplaceOrView below;
  for (const auto& work : graphs().at(graph).work) work();
  replayed = false;
}

void release(const at::Tensor& /*on*/, std::int64_t graph) { graphs().erase(graph); }

TORCH_LIBRARY_IMPL(ladder, CUDA, m) {
  m.impl("graph_begin", TORCH_FN(begin));
  m.impl("graph_end", TORCH_FN(end));
  m.impl("graph_replay", TORCH_FN(replay));
  m.impl("graph_free", TORCH_FN(release));
}

}  // namespace

bool is_captured() { return captured != nullptr; }
bool is_replayed() { return replayed; }

void record(std::function<void()> work) { captured->work.push_back(std::move(work)); }
void before_write(const at::Tensor& t) { keep(t, /*is_new=*/false); }
void made_in_capture(const at::Tensor& t) { keep(t, /*is_new=*/true); }

at::Tensor alias_of(const at::Tensor& t) {
  return is_on_gpu(t) ? with_geometry(t.storage(), kKey, t) : t;
}

void refuse_in_capture() {
  TORCH_CHECK(captured == nullptr,
              "CUDA error: operation not permitted when stream is capturing (fake_cuda)");
}

}  // namespace fake_cuda
