// SPDX-License-Identifier: Apache-2.0
// See README.md in the folder above: what LibTorch's ProcessGroupGloo.hpp needs to see of Gloo.
#pragma once

namespace gloo::transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};

}  // namespace gloo::transport
