// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <new>

namespace ladder {
namespace {

void require_memory(bool ok) {
  if (!ok) throw std::bad_alloc();
}

}  // namespace

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  require_memory(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::update(std::span<const std::byte> bytes) {
  require_memory(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

void Sha256::update(std::string_view text) {
  update(std::as_bytes(std::span(text.data(), text.size())));
}

std::string Sha256::hex_digest() {
  std::array<unsigned char, 32> bytes{};
  require_memory(EVP_DigestFinal_ex(context_.get(), bytes.data(), nullptr) == 1 &&
                 EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  std::string digest;
  for (const unsigned char byte : bytes) digest += fmt::format("{:02x}", byte);
  return digest;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 sha256;
  sha256.update(bytes);
  return sha256.hex_digest();
}

}  // namespace ladder
