// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Parallel.h>

namespace ladder {

// While it lives, LibTorch's operations that this thread calls use one thread, so that sums in them
// do not depend on the number of threads.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) {
    // Each library that includes ATen has a copy of this inline function, which sets the number at
    // its first use in a thread: not after this.
    at::internal::lazy_init_num_threads();
    at::set_num_threads(1);
  }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace ladder
