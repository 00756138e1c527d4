// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/sha256.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
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

TEST(Sha256, PadsCorrectlyAroundEveryBlockBorder) {
  const std::map<std::size_t, std::string> digests = {
      {55, "e7313d333c272e639f790978283f9eb392e843d0f29b7016828bb1daa4aac70b"},
      {56, "4324d65f3c103567f5589c710bc08f8523f929a9272e3af36fc968e52abc6c27"},
      {63, "81c80242132f230c3bd41b3e63bbcff16107339549214a99614ff26664625055"},
      {64, "39e3d7b6b5d075d37d053ad89b24b41bef4f3c29760c84447cab3f3be1882241"},
      {65, "aacca6ff74fdbb296d165a45cecfa04e5127bc008770fbbdd48006f2d2fae95e"},
      {119, "9ce7368e4daf32341631b492e80359dc9f594b48453cd0dd5bf0b19279cc177e"},
      {120, "7836b787757e95e58b3ca5aec90b1b004e8deba1e50e9675af9cabf1a13a04b5"},
      {127, "a8d23e75d936f303d248888d9b165ee543f4cbafcad3c9dd2a79bd84faa11d07"},
      {128, "d2742f1f4ac6bb7ca2b239ee18402ba8b3f9f8e652d2a72973c2b9ba11c08cf6"}};
  for (const auto& [size, digest] : digests) {
    EXPECT_EQ(sha256_hex(pattern(size)), digest) << size << " bytes";
  }
}

TEST(Sha256, MatchesHashlibForAllLengthsUpTo130) {
  std::string digests;
  for (std::size_t size = 0; size <= 130; ++size) digests += sha256_hex(pattern(size));
  // The digest of the 131 digests, one after the other.
  EXPECT_EQ(digest_of(digests), "d2742658eeae2e342e618f39ae52ef451168b58f37f0932d49a52eda7f546706");
}

TEST(Sha256, DoesNotDependOnHowTheBytesArrive) {
  const auto bytes = pattern(1000);
  const std::string whole = sha256_hex(bytes);
  for (std::size_t piece = 1; piece <= 130; ++piece) {
    Sha256 sha256;
    for (std::size_t i = 0; i < bytes.size(); i += piece) {
      sha256.update(std::span(bytes).subspan(i, std::min(piece, bytes.size() - i)));
    }
    EXPECT_EQ(sha256.hex_digest(), whole) << "pieces of " << piece;
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
