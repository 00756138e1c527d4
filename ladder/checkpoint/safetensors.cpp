// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "ladder/checkpoint/safetensors_header.h"
#include "ladder/core/error.h"
#include "ladder/core/text.h"
#include "ladder/io/atomic_file.h"
#include "ladder/io/json.h"
#include "ladder/io/regular_file.h"
#include "ladder/launch/rank_status.h"
#include "ladder/launch/signals.h"
#include "ladder/optim/fused_optimizer.h"
#include "ladder/optim/network_part.h"

namespace ladder {
namespace {

constexpr const char* kGroups = "groups";  // of an optimizer

void read_or_refuse(const RegularFile& file, std::uint64_t offset, std::span<std::byte> bytes,
                    const std::string& path) {
  const int error = read_at(file, offset, bytes);
  if (error == 0) return;
  throw DataError::mismatch(path, "a readable file", fmt::format("'{}'", std::strerror(error)),
                            "see the messages of the kernel about its disk: dmesg");
}

// Reads no more than the header: a length in a damaged one must not decide how much memory is used.
SafetensorsHeader read_header(const RegularFile& file, const std::string& path) {
  constexpr std::uint64_t kSizeBytes = 8;
  std::vector<std::uint8_t> bytes(std::min(kSizeBytes, file.bytes));
  const auto read_to_end = [&] {
    read_or_refuse(file, 0, std::as_writable_bytes(std::span(bytes)), path);
  };
  read_to_end();
  bytes.resize(safetensors_header_end(bytes, file.bytes, path));
  read_to_end();
  return parse_safetensors_header(bytes, file.bytes, path);
}

}  // namespace

void write_safetensors(const SafetensorsFile& file, const WriteBytes& write) {
  std::vector<TensorEntry> entries;
  std::uint64_t end = 0;
  for (const auto& [name, tensor] : file.tensors) {
    const std::uint64_t begin = std::exchange(end, end + tensor.nbytes());
    entries.push_back(
        {name, safetensors_dtype(tensor.scalar_type()), tensor.sizes().vec(), begin, end});
  }
  const std::string header = make_safetensors_header(file.metadata, entries);
  write(std::as_bytes(std::span(header)));
  for (const auto& [name, tensor] : file.tensors) write(RowMajorBytes(tensor).span());
}

void save_safetensors(const std::string& path, const SafetensorsFile& file) {
  require_no_pickle_name("save_safetensors", path, "convert_checkpoint.py");
  AtomicFile output(path);
  write_safetensors(file, [&](std::span<const std::byte> bytes) { output.write(bytes); });
  output.commit();
}

SafetensorsFile load_safetensors(const std::string& path) {
  const auto opened = open_data_file(path);
  const auto header = read_header(opened, path);
  SafetensorsFile file{{}, header.metadata};
  for (const auto& entry : header.entries) {
    auto tensor = torch::empty(entry.shape, dtype_of_safetensors(entry.dtype));
    const std::span bytes(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
    read_or_refuse(opened, header.data_offset + entry.begin, bytes, path);
    file.tensors.emplace(entry.name, std::move(tensor));
  }
  return file;
}

SafetensorsFile model_file(const torch::nn::Module& module,
                           std::map<std::string, std::string> metadata) {
  metadata.emplace("format", "pt");
  return {unwrapped_state_dict(module), std::move(metadata)};
}

void save_model(const torch::nn::Module& module, const std::string& path,
                std::map<std::string, std::string> metadata) {
  require_whole("save_model", module.parameters());
  require_finite(module, path);
  const DeferredSignals until_saved;
  const SavingMark saving(path);
  save_safetensors(path, model_file(module, std::move(metadata)));
}

void load_model(torch::nn::Module& module, const std::string& path) {
  load_state_dict(module, load_safetensors(path).tensors, path);
}

SafetensorsFile to_safetensors(const OptimizerState& state) {
  return {state.tensors, {{"format", "pt"}, {kGroups, state.groups.dump()}}};
}

OptimizerState optimizer_state_from(SafetensorsFile file, std::string_view origin) {
  const auto found = file.metadata.find(kGroups);
  if (found == file.metadata.end()) {
    throw DataError::mismatch(origin, "groups in the metadata", "none",
                              "it must hold the state of an optimizer, not of a network");
  }
  auto groups = parse_untrusted_json(found->second, json_data_error(origin));
  return {std::move(file.tensors), std::move(groups)};
}

}  // namespace ladder
