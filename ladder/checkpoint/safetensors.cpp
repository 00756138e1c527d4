// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/safetensors.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <utility>
#include <vector>

#include "ladder/checkpoint/atomic_file.h"
#include "ladder/checkpoint/safetensors_header.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

std::vector<std::uint8_t> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    throw DataError::missing_file(path, std::string(std::strerror(errno)) + ": check the path");
  }
  if (std::filesystem::is_directory(path)) {
    throw DataError::mismatch(path, "a readable file", "a folder", "name the file inside it");
  }
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(file.tellg()));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw DataError::mismatch(path, "a readable file", "a read error", "");
  return bytes;
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
  AtomicFile output(path);
  write_safetensors(file, [&](std::span<const std::byte> bytes) { output.write(bytes); });
  output.commit();
}

SafetensorsFile load_safetensors(const std::string& path) {
  const auto bytes = read_file(path);
  const auto header = parse_safetensors_header(bytes, bytes.size(), path);
  const auto data = std::span(bytes).subspan(header.data_offset);
  SafetensorsFile file{{}, header.metadata};
  for (const auto& entry : header.entries) {
    auto tensor = torch::empty(entry.shape, dtype_of_safetensors(entry.dtype));
    const auto part = data.subspan(entry.begin, entry.end - entry.begin);
    if (!part.empty()) std::memcpy(tensor.mutable_data_ptr(), part.data(), part.size());
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
  require_finite(module, path);
  save_safetensors(path, model_file(module, std::move(metadata)));
}

void load_model(torch::nn::Module& module, const std::string& path) {
  load_state_dict(module, load_safetensors(path).tensors, path);
}

}  // namespace ladder
