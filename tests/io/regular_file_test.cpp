// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/regular_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/unique_fd.h"
#include "ladder/io/sha256.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_paths.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

std::string text_at(const RegularFile& file, std::uint64_t offset, std::size_t size) {
  std::string text(size, '\0');
  EXPECT_EQ(read_at(file, offset, std::as_writable_bytes(std::span(text))), 0);
  return text;
}

TEST(RegularFile, IsReadFromAnyOffset) {
  const TemporaryFolder folder;
  const auto file = open_data_file(folder.write("a", "0123456789"));
  EXPECT_EQ(file.bytes, 10U);
  EXPECT_EQ(text_at(file, 0, 3), "012");
  EXPECT_EQ(text_at(file, 7, 3), "789");
  std::string more(4, '\0');
  EXPECT_EQ(read_at(file, 7, std::as_writable_bytes(std::span(more))), EIO) << "it ends before";
}

TEST(RegularFile, IsReadInPiecesUntilItIsEnough) {
  const TemporaryFolder folder;
  const auto path = folder.write("a", std::string(3'000'000, 'x'));
  std::size_t bytes = 0;
  EXPECT_EQ(read_pieces(open_data_file(path),
                        [&](auto piece) { return (bytes += piece.size()) < 500'000; }),
            0);
  EXPECT_GE(bytes, 500'000U);
  EXPECT_LT(bytes, 3'000'000U);
  bytes = 0;
  const auto all = open_data_file(path);
  EXPECT_EQ(read_pieces(all, [&](auto piece) { return (bytes += piece.size()) > 0; }), 0);
  EXPECT_EQ(bytes, 3'000'000U);
}

// A case that hung is ended by the time limit of the test.
TEST(RegularFile, EverythingElseIsNamedWithoutWaiting) {
  const TemporaryFolder folder;
  const auto target = folder.write("target", "x");
  const auto found = [](const std::string& path) { return open_regular_file(path).problem; };
  EXPECT_EQ(found(folder.path()), "a folder");
  EXPECT_EQ(found(make_pipe(folder.file("pipe"))), "a pipe");
  EXPECT_EQ(found(make_socket(folder.file("socket"))), "a socket");
  EXPECT_EQ(found("/dev/zero"), "a device");
  EXPECT_EQ(found(folder.file("none")), "none");
  EXPECT_EQ(found(make_link(folder.file("dangling"), "nowhere")), "none");
  EXPECT_EQ(found(make_link(folder.file("circle"), "circle")), "a link");
  EXPECT_EQ(found(make_link(folder.file("link"), target)), "") << "a link to a file is followed";
}

TEST(RegularFile, InAFolderALinkIsNotFollowed) {
  const TemporaryFolder folder;
  folder.write("file", "x");
  make_link(folder.file("link"), "file");
  const UniqueFd opened(::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_EQ(open_regular_file_in(opened.get(), "file").problem, "");
  EXPECT_EQ(open_regular_file_in(opened.get(), "link").problem, "a link");
}

TEST(RegularFile, AnErrorNamesTheKindAndWhatToType) {
  const TemporaryFolder folder;
  const auto& path = folder.path();
  const auto expect_error = [&](const std::string& file, const std::string& rest) {
    EXPECT_ERROR(open_data_file(file), DataError, file + ": expected a readable file, got " + rest);
  };
  expect_error(make_pipe(folder.file("pipe")), "a pipe; hint: name a file");
  expect_error("/dev/zero", "a device; hint: name a file");
  expect_error(path, "a folder; hint: name the file inside it: ls " + path);
  expect_error(folder.file("none"), "none; hint: check the path: ls " + path);
  expect_error(folder.write("file", "x") + "/x", "none; hint: a part of the path is a file: namei");
}

// --- Sha256 ---

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
