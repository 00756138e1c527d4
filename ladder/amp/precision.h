// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <optional>
#include <string>

#include "ladder/core/log.h"
#include "ladder/core/precision.h"

namespace ladder {

// "fp32", "bf16" or "fp16".
std::string name_of(Precision precision);

// The dtype for Autocast.
torch::ScalarType dtype_of(Precision precision);

// `requested`, or the default of the device: bf16 on the CPU, fp16 on a GPU. Logs a line for a CPU
// without instructions for that precision, where it is correct but slower than fp32. Does not check
// GPUs.
Precision choose_precision(std::optional<Precision> requested, const torch::Device& device,
                           const Log& log);

}  // namespace ladder
