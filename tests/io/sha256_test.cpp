// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/sha256.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>

namespace ladder {
namespace {

std::string digest_of(std::string_view text) {
  return sha256_hex(std::as_bytes(std::span(text.data(), text.size())));
}

TEST(Sha256, MatchesTheVectorsOfTheStandard) {
  EXPECT_EQ(digest_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, DoesNotDependOnHowTheBytesArriveAndBeginsAnewAfterADigest) {
  const std::string text(1000, 'a');
  Sha256 sha256;
  for (const std::size_t piece : {1U, 63U, 999U}) {
    for (std::size_t i = 0; i < text.size(); i += piece) {
      sha256.update(std::string_view(text).substr(i, piece));
    }
    EXPECT_EQ(sha256.hex_digest(), digest_of(text)) << "pieces of " << piece;
  }
}

}  // namespace
}  // namespace ladder
