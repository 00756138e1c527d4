// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "ladder/checkpoint/state_dict.h"

namespace ladder {

// A safetensors file: named tensors and a few lines of text, without any code in it.
//
// Python reads and writes the same with safetensors.torch.load_file and save_file. Unlike a
// pickle, loading such a file from a stranger can only fail. docs/formats.md has the layout.
struct SafetensorsFile {
  StateDict tensors;                            // on the CPU, contiguous
  std::map<std::string, std::string> metadata;  // free text
};

// Writes `file` to `path`, tensors in name order. Readers see the old file or the whole new one,
// never a part (see AtomicFile). Throws SystemError if the disk refuses, UsageError for a dtype
// that the format lacks.
void save_safetensors(const std::string& path, const SafetensorsFile& file);

// Reads and checks a whole file. Throws DataError if it is missing or damaged in any way.
SafetensorsFile load_safetensors(const std::string& path);

// Saves the weights of `module` without the prefix of any wrapper, and `metadata` beside them.
// Throws what save_safetensors does, and NumericError for weights that are NaN or infinite
// (see require_finite); an old file stays.
void save_model(const torch::nn::Module& module, const std::string& path,
                std::map<std::string, std::string> metadata = {});

// Loads weights that save_model or Python wrote into `module`, wrapped or not. Nothing is
// changed if the file is damaged or belongs to another network: DataError.
void load_model(torch::nn::Module& module, const std::string& path);

}  // namespace ladder
