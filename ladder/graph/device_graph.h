// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace ladder {

// Records the work of the current stream between construction and end(), which does not run then;
// each replay() runs it, as one launch, with the same addresses and numbers.
//
// The calls go through the dispatcher, as ladder::graph_begin and so on, so the build needs no
// CUDA. With CUDA it is an at::cuda::CUDAGraph, whose memory stays reserved while it lives.
//
// Throws c10::Error, or lets the operator throw it, for what CUDA cannot capture.
class DeviceGraph {
 public:
  // The current stream must not be the default one.
  explicit DeviceGraph(const torch::Device& device);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  void end();
  void replay() const;  // on the current stream

 private:
  torch::Tensor on_;  // on the device: the dispatcher chooses by it
  std::int64_t graph_;
  bool captures_ = true;
};

}  // namespace ladder
