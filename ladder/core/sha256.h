// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ladder {

// SHA-256, the fingerprint of files and weights.
//
// Two byte strings with the same digest are the same byte string for every practical
// purpose, so a digest of 64 characters says which data set a program read and whether
// two runs ended with the same weights.
//
// Bytes may come in pieces of any size: only their concatenation counts. Never fails.
// Source: FIPS 180-4, section 6.2. Python's counterpart: hashlib.sha256.
//
//     Sha256 sha256;
//     sha256.update("weight");
//     sha256.update(std::as_bytes(std::span(values)));
//     std::string digest = sha256.hex_digest();
class Sha256 {
 public:
  // Appends bytes, as they lie in memory.
  void update(std::span<const std::byte> bytes);
  // Appends the characters of a text, without a terminating zero.
  void update(std::string_view text);

  // The digest of all bytes so far: 64 lower-case hexadecimal characters.
  // Afterwards the object is as new and may take another message.
  std::string hex_digest();

 private:
  static constexpr std::size_t kBlockBytes = 64;

  void compress(const std::byte* block);
  void pad();

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlockBytes> block_{};  // the bytes that do not fill a block yet
  std::uint64_t size_ = 0;                      // bytes so far
};

// The digest of one piece of memory.
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace ladder
