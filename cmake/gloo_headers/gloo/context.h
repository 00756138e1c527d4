// SPDX-License-Identifier: Apache-2.0
// See README.md in the folder above: what LibTorch's ProcessGroupGloo.hpp needs to see of Gloo.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
