// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/sha256.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace ladder {
namespace {

std::string digest_of(std::string_view text) {
  Sha256 sha256;
  sha256.update(text);
  return sha256.hex_digest();
}

// `size` bytes 3, 10, 17, ... modulo 256. The digests below are those of Python's hashlib.
std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(7 * i + 3);
  return bytes;
}

TEST(Sha256, MatchesTheVectorsOfTheStandard) {
  EXPECT_EQ(digest_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digest_of("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                      "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(digest_of(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, MatchesHashlibForAllLengthsUpTo130) {
  std::string digests;
  for (std::size_t size = 0; size <= 130; ++size) digests += sha256_hex(pattern(size));
  // The digest of the 131 digests, one after the other.
  EXPECT_EQ(digest_of(digests), "d2742658eeae2e342e618f39ae52ef451168b58f37f0932d49a52eda7f546706");
}

TEST(Sha256, DoesNotDependOnHowTheBytesArrive) {
  const auto bytes = pattern(1000);
  for (const std::size_t piece : {1U, 63U, 64U, 65U, 999U}) {
    Sha256 sha256;
    for (std::size_t i = 0; i < bytes.size(); i += piece) {
      sha256.update(std::span(bytes).subspan(i, std::min(piece, bytes.size() - i)));
    }
    EXPECT_EQ(sha256.hex_digest(), sha256_hex(bytes)) << "pieces of " << piece;
  }
}

TEST(Sha256, StartsANewMessageAfterADigest) {
  Sha256 sha256;
  sha256.update("first");
  sha256.hex_digest();
  sha256.update("abc");
  EXPECT_EQ(sha256.hex_digest(), digest_of("abc"));
}

}  // namespace
}  // namespace ladder
