// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Parallel.h>

namespace ladder {

// The number of threads of LibTorch's operations while it lives.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace ladder
