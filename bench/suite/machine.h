// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ladder::bench {

// The environment of a measurement: names and values for the report. What cannot be read is
// "unknown". `data`: the file of the training images; `program`: one whose
// --version names the libraries; `python`: one that can name the twins' packages.
std::vector<std::pair<std::string, std::string>> describe_machine(const std::string& data,
                                                                  const std::string& program,
                                                                  const std::string& python);

// Peak multiplications and additions per second of this machine, in GFLOP/s, measured with the
// widest fused multiply-add of the CPU. It bounds the time of a program from below. Without matrix
// units (AMX).
struct Peaks {
  double one_thread = 0.0;  // float32
  double all = 0.0;         // float32, all threads
  double bfloat16 = 0.0;    // all threads; as float32 where the CPU has no instruction for it
};
Peaks measure_peaks(int threads);

// Time that the host gave to other machines, in ticks of all CPUs, and the load of the last minute:
// a comparison is invalid if they rise.
std::int64_t steal_ticks();
double load_average();

}  // namespace ladder::bench
