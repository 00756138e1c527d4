// SPDX-License-Identifier: Apache-2.0
#include "ladder/graph/device_graph.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/utils.h>

#ifdef LADDER_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>
#endif

namespace ladder {
namespace {

#ifdef LADDER_CUDA
using Graph = at::cuda::CUDAGraph;

Graph* graph_at(std::int64_t address) { return reinterpret_cast<Graph*>(address); }

std::int64_t begin(const torch::Tensor& /*on*/) {
  c10::cuda::CUDACachingAllocator::emptyCache();  // a capture cannot use what others have freed
  auto graph = std::make_unique<Graph>();
  // Only this thread must not wait: a loader's threads pin memory, and NCCL's thread asks for
  // events.
  graph->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  return reinterpret_cast<std::int64_t>(graph.release());
}
void end(const torch::Tensor& /*on*/, std::int64_t graph) { graph_at(graph)->capture_end(); }
void replay(const torch::Tensor& /*on*/, std::int64_t graph) { graph_at(graph)->replay(); }
void release(const torch::Tensor& /*on*/, std::int64_t graph) { delete graph_at(graph); }
#endif

TORCH_LIBRARY_FRAGMENT(ladder, library) {
  library.def("graph_begin(Tensor on) -> int");
  library.def("graph_end(Tensor on, int graph) -> ()");
  library.def("graph_replay(Tensor on, int graph) -> ()");
  library.def("graph_free(Tensor on, int graph) -> ()");
#ifdef LADDER_CUDA
  library.impl("graph_begin", c10::DispatchKey::CUDA, TORCH_FN(begin));
  library.impl("graph_end", c10::DispatchKey::CUDA, TORCH_FN(end));
  library.impl("graph_replay", c10::DispatchKey::CUDA, TORCH_FN(replay));
  library.impl("graph_free", c10::DispatchKey::CUDA, TORCH_FN(release));
#endif
}

template <typename Function>
auto operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

using OnGraph = void(const torch::Tensor& on, std::int64_t graph);

}  // namespace

DeviceGraph::DeviceGraph(const torch::Device& device) : on_(torch::empty({0}, device)) {
  graph_ = operator_named<std::int64_t(const torch::Tensor&)>("ladder::graph_begin").call(on_);
}

DeviceGraph::~DeviceGraph() {
  try {
    if (captures_) end();
  } catch (const c10::Error&) {  // after the error that interrupted the capture
  }
  try {
    operator_named<OnGraph>("ladder::graph_free").call(on_, graph_);
  } catch (const c10::Error&) {  // the GPU is lost
  }
}

void DeviceGraph::end() {
  captures_ = false;
  operator_named<OnGraph>("ladder::graph_end").call(on_, graph_);
}

void DeviceGraph::replay() const {
  static const auto replay = operator_named<OnGraph>("ladder::graph_replay");
  replay.call(on_, graph_);
}

}  // namespace ladder
