// SPDX-License-Identifier: Apache-2.0
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <stdexcept>

#include "ladder/shm/shared_memory_backend.h"

namespace {

// A collective. Python registers it for torch.distributed.
c10::intrusive_ptr<c10d::Backend> make(const ladder::C10dStore& store, int rank, int world_size,
                                       std::chrono::milliseconds timeout) {
  ladder::ProcessGroup::Setup setup{.rank = rank,
                                    .world_size = world_size,
                                    .timeout = timeout,
                                    .store = store,
                                    .gloo_address = "127.0.0.1"};
  auto backend = ladder::make_shared_memory_backend(setup, store);
  if (!backend) {
    throw ladder::no_common_memory("backend ladder", world_size, "use backend gloo");
  }
  return backend;
}

}  // namespace

PYBIND11_MODULE(_backend, module) {
  module.def("make", &make, pybind11::call_guard<pybind11::gil_scoped_release>());
}
