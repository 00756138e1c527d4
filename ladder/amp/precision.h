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

// The dtype for Autocast. float32 means: no autocast.
torch::ScalarType dtype_of(Precision precision);

// The precision that was asked for, or the device's own: bf16 on the CPU, fp16 on a GPU.
//
// Any CPU can compute in 16 bits, but one without instructions for it converts back and forth:
// correct, and slower than fp32. One log line says so. What a GPU can do is not looked at.
Precision choose_precision(std::optional<Precision> requested, const torch::Device& device,
                           const Log& log);

}  // namespace ladder
