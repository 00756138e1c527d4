// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

// Small valid files, made in memory, for tests to read or to damage.

using Bytes = std::vector<std::uint8_t>;

inline Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

// `content` as one gzip stream.
inline Bytes gzip(const Bytes& content) {
  constexpr int kGzipWrapper = 16;
  z_stream stream{};
  if (deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + kGzipWrapper, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2 failed");
  Bytes compressed(deflateBound(&stream, static_cast<uLong>(content.size())));
  stream.next_in = const_cast<Bytef*>(content.data());
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = compressed.data();
  stream.avail_out = static_cast<uInt>(compressed.size());
  const int status = deflate(&stream, Z_FINISH);
  compressed.resize(stream.total_out);
  deflateEnd(&stream);
  if (status != Z_STREAM_END) throw std::runtime_error("deflate failed");
  return compressed;
}

// An IDX file: the magic number, the sizes, the items.
inline Bytes idx_file(std::uint32_t magic, const std::vector<std::uint32_t>& sizes,
                      const Bytes& items) {
  Bytes file;
  const auto append = [&file](std::uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      file.push_back(static_cast<std::uint8_t>(value >> shift));
    }
  };
  append(magic);
  for (const std::uint32_t size : sizes) append(size);
  file.insert(file.end(), items.begin(), items.end());
  return file;
}

inline Bytes idx_images_file(std::uint32_t count, std::uint32_t rows, std::uint32_t columns) {
  Bytes pixels(std::size_t{count} * rows * columns);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i % 251);
  return idx_file(0x00000803, {count, rows, columns}, pixels);
}

inline Bytes idx_labels_file(const Bytes& labels) {
  return idx_file(0x00000801, {static_cast<std::uint32_t>(labels.size())}, labels);
}

// A safetensors file with this JSON, unpadded, and a data part of zeros.
inline Bytes safetensors_file(std::string_view json, std::size_t data_bytes) {
  Bytes file;
  for (std::size_t i = 0; i < 8; ++i) {
    file.push_back(static_cast<std::uint8_t>(json.size() >> (8 * i)));
  }
  file.insert(file.end(), json.begin(), json.end());
  file.resize(file.size() + data_bytes);
  return file;
}

}  // namespace ladder
