// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace ladder {

// SHA-256 of files and weights, by OpenSSL. Equal digests mean equal bytes: which data set a
// program read, and whether two runs ended with the same weights.
//
// Only the concatenation of the pieces counts. Throws std::bad_alloc without memory; nothing else
// fails. Python's counterpart: hashlib.sha256.
//
//     Sha256 sha256;
//     sha256.update("weight");
//     sha256.update(std::as_bytes(std::span(values)));
//     std::string digest = sha256.hex_digest();
class Sha256 {
 public:
  Sha256();

  // Appends bytes in their order in memory.
  void update(std::span<const std::byte> bytes);
  // Appends the characters of a text, without a terminating zero.
  void update(std::string_view text);

  // The digest of all bytes so far: 64 lower-case hexadecimal characters.
  // Afterwards the object is empty and can digest another message.
  std::string hex_digest();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };

  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// The digest of one piece of memory.
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace ladder
