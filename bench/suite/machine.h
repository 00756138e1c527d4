// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ladder::bench {

// What a figure depends on besides the program: names and values for the report. What cannot be
// read is "unknown", never left out. `data`: the file of the training images; `program`: one whose
// --version names the libraries; `python`: one that can name the twins' packages.
std::vector<std::pair<std::string, std::string>> describe_machine(const std::string& data,
                                                                  const std::string& program,
                                                                  const std::string& python);

// Multiplications and additions that this machine can do in a second, in GFLOP/s: measured by
// threads that do nothing else, with the widest fused multiply-add of the CPU. No program is
// faster; what it needs at least for its arithmetic is the floor. A matrix unit (AMX) is left out.
struct Peaks {
  double one_thread = 0.0;  // float32
  double all = 0.0;         // float32, all threads
  double bfloat16 = 0.0;    // all threads; as float32 where the CPU has no instruction for it
};
Peaks measure_peaks(int threads);

// Bytes that all programs of this machine have sent over the loopback device; nothing if the
// system does not say.
std::optional<std::int64_t> loopback_bytes();

// Time that the host took from this machine for others, in ticks of all CPUs, and the load of the
// last minute: if they rise during a comparison, it is none.
std::int64_t steal_ticks();
double load_average();

}  // namespace ladder::bench
