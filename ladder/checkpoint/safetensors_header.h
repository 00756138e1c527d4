// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace ladder {

// The header of a safetensors file: the names, types and positions of its tensors.
//
//     bytes  content
//     8      N, the size of the header, least significant byte first
//     N      JSON, padded with spaces:
//            {"__metadata__": {"text": "text"},
//             "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//     rest   the data part: the tensors' elements, least significant byte first
//
// The file contains no code, and no number in it is trusted. A header is accepted only if
//   - it has at most 16 MiB, lies inside the file, begins with '{' and is valid JSON of
//     exactly the form above: no other keys, no key twice, no deeper nesting;
//   - every dtype is known, and every shape times its dtype is the length of its range;
//   - the ranges cover the data part without hole or overlap, and it ends with the file.
// Everything else is a DataError (exit code 3) that begins with the file's name. Memory
// depends on the bytes that are there, never on a size that the file claims.
//
// Source: https://huggingface.co/docs/safetensors, and the checks of its Rust crate.

struct TensorEntry {
  std::string name;
  std::string dtype;                // BOOL U8 I8 I16 U16 I32 U32 I64 U64 F16 BF16 F32 F64
  std::vector<std::int64_t> shape;  // empty for a scalar; a 0 makes an empty tensor
  std::uint64_t begin = 0;          // position of the first byte in the data part
  std::uint64_t end = 0;            // one past the last byte
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;  // free text; may be empty
  std::vector<TensorEntry> entries;             // in the order of their bytes
  std::uint64_t data_offset = 0;                // position of the data part in the file
};

// The bytes that parse_safetensors_header needs: 8 + N. `prefix` is at least the first 8 bytes of
// the file. Throws DataError if N is more than the file or 16 MiB.
std::uint64_t safetensors_header_end(std::span<const std::uint8_t> prefix, std::uint64_t file_size,
                                     const std::string& name);

// Parses and checks the header of a file of `file_size` bytes. `prefix` is the file or its
// beginning, of at least safetensors_header_end() bytes.
SafetensorsHeader parse_safetensors_header(std::span<const std::uint8_t> prefix,
                                           std::uint64_t file_size, const std::string& name);

// The bytes of a file before its data part, size included. Entries keep their order, and
// the data part begins at a multiple of 8. Names and ranges must be unique. Bytes that are not
// UTF-8 become U+FFFD. Throws UsageError for a header above 16 MiB, which no reader would accept.
std::string make_safetensors_header(const std::map<std::string, std::string>& metadata,
                                    const std::vector<TensorEntry>& entries);

}  // namespace ladder
