// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ladder {

// Equals: the arguments of counter_mask (dropout_mask.h), as its kernel on a GPU takes them. No
// #include, as in philox_constants.h: NVRTC compiles this file too.
struct CounterMaskArguments {
  float* mask = nullptr;                 // [samples, elements]
  const long long* positions = nullptr;  // [samples]; null: first, first + step, ...
  bool with_epochs = false;              // positions + 2^32 * epoch, and epoch is 0
  long long first = 0;
  long long step = 0;
  unsigned long long seed = 0;
  unsigned epoch = 0;
  unsigned layer = 0;
  unsigned samples = 0;
  unsigned elements = 0;   // of a sample
  unsigned channels = 1;   // innermost in the memory of a sample; 1 = contiguous samples
  unsigned threshold = 0;  // smaller words drop their element
  float kept = 0.0F;       // value of the others
};

// Threads of the kernel: one for four elements. Samples are blocks in y, at most this number.
inline constexpr unsigned kCounterMaskThreads = 128;
inline constexpr unsigned kCounterMaskSamples = 65535;

}  // namespace ladder
