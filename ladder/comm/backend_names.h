// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace ladder {

// Names of the backends in this program, for options and their help texts: those of LibTorch, and
// those that add_backend added (backends.h).

// By name, the condition under which "auto" selects it: "on one machine", or "".
std::map<std::string, std::string>& backend_names();

// The values of ProcessGroupOptions::backend: auto, gloo, nccl, ...
std::vector<std::string> backend_choices();

// "nccl with one GPU per rank, shm on one machine"
std::string automatic_backends();

}  // namespace ladder
