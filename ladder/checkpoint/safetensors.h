// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "ladder/io/atomic_file.h"
#include "ladder/nn/state_dict.h"

namespace ladder {

class GradScaler;
struct OptimizerState;

// A safetensors file: named tensors and metadata as text. Unlike a pickle, it contains no code.
//
// Python reads and writes it with safetensors.torch.load_file and save_file. docs/formats.md has
// the layout.
struct SafetensorsFile {
  StateDict tensors;  // on the CPU, contiguous
  std::map<std::string, std::string> metadata;
};

// Writes `file` to `path`, tensors in name order. Readers see the old file or the complete new one
// (see AtomicFile). Throws SystemError if writing fails, UsageError for a name of a pickle, a dtype
// that the format lacks or a header above 16 MiB.
void save_safetensors(const std::string& path, const SafetensorsFile& file);

// Passes the bytes of such a file to `write`; same errors.
void write_safetensors(const SafetensorsFile& file, const WriteBytes& write);

// Reads and checks a file. Throws DataError if it is missing or damaged.
SafetensorsFile load_safetensors(const std::string& path);

// The weights of `module` without the prefix of any wrapper, and `metadata`. Shares their memory.
SafetensorsFile model_file(const torch::nn::Module& module,
                           std::map<std::string, std::string> metadata = {});

// Saves model_file(module, metadata). A signal that would end the process waits for the end
// (signals.h).
// Throws like save_safetensors, and NumericError for weights that are NaN or infinite
// (see require_finite); the old file stays.
void save_model(const torch::nn::Module& module, const std::string& path,
                std::map<std::string, std::string> metadata = {});

// Loads weights that save_model or Python has written into `module`, wrapped or not. Throws
// DataError if the file is damaged or belongs to another network; `module` is unchanged then.
void load_model(torch::nn::Module& module, const std::string& path);

// The state as a file: `groups` is JSON text in its metadata, under "groups".
SafetensorsFile to_safetensors(const OptimizerState& state);

// The state in a file that load_safetensors has read. Throws DataError, which begins with
// `origin`, if its metadata has no groups or they are not JSON. FusedOptimizer::plan_load checks
// the rest.
OptimizerState optimizer_state_from(SafetensorsFile file, std::string_view origin);

// The scaler's state as JSON text in the metadata of a safetensors file of weights, under the key
// "scaler" (docs/formats.md has the lines that read it in Python):
//
//     save_model(model, path, metadata_of(scaler));
//     load_model(model, path);
//     load_scaler(scaler, path);
//
// A disabled scaler has no metadata and loads none. A file without a state changes nothing. Throws
// DataError if the file or the state is damaged.
std::map<std::string, std::string> metadata_of(const GradScaler& scaler);
void load_scaler(GradScaler& scaler, const std::string& path);

}  // namespace ladder
