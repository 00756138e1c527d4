// SPDX-License-Identifier: Apache-2.0
#include "mnist/gzip_file.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>

#include "ladder/core/error.h"
#include "ladder/core/sha256.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_files.h"
#include "tests/support/temporary_folder.h"

namespace mnist {
namespace {

using namespace ladder;

constexpr std::size_t kLimit = 1'000'000;

std::span<const std::byte> as_bytes(const Bytes& bytes) { return std::as_bytes(std::span(bytes)); }

// Bytes that do not compress.
Bytes noise(std::size_t size) {
  Bytes bytes(size);
  std::uint32_t state = 1;
  for (auto& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::uint8_t>(state >> 24);
  }
  return bytes;
}

TEST(InflateGzip, GivesBackWhatWasCompressed) {
  for (const std::size_t size : {0U, 1U, 65536U, 70000U, 999'999U}) {
    EXPECT_EQ(inflate_gzip(gzip(noise(size)), kLimit, "x"), noise(size)) << size << " bytes";
    EXPECT_EQ(inflate_gzip(gzip(Bytes(size)), kLimit, "x"), Bytes(size)) << size << " zeros";
  }
}

TEST(InflateGzip, AcceptsContentOfExactlyTheLimit) {
  EXPECT_EQ(inflate_gzip(gzip(noise(5000)), 5000, "x"), noise(5000));
}

TEST(InflateGzip, RefusesOneByteMoreThanTheLimit) {
  EXPECT_ERROR(inflate_gzip(gzip(noise(5001)), 5000, "x.gz"), DataError,
               "x.gz: expected at most 5000 bytes of content, got more; hint: ");
}

TEST(InflateGzip, RefusesABombWithoutHoldingIt) {
  const Bytes bomb = gzip(Bytes(std::size_t{64} << 20));  // 64 MiB of zeros in 64 kB
  ASSERT_LT(bomb.size(), 70'000U);
  EXPECT_ERROR(inflate_gzip(bomb, kLimit, "x.gz"), DataError, "expected at most 1000000 bytes");
}

TEST(InflateGzip, RefusesEveryTruncation) {
  const Bytes whole = gzip(noise(300));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_ERROR(inflate_gzip(std::span(whole).first(size), kLimit, "x.gz"), DataError,
                 "x.gz: expected a complete gzip stream, got its end after " +
                     std::to_string(size) + " bytes; hint: fetch the file again");
  }
}

TEST(InflateGzip, RefusesADamagedCrc) {
  Bytes damaged = gzip(noise(300));
  damaged[damaged.size() - 8] ^= 1;
  EXPECT_ERROR(inflate_gzip(damaged, kLimit, "x.gz"), DataError,
               "x.gz: expected an intact gzip stream, got incorrect data check near byte ");
}

TEST(InflateGzip, RefusesADamagedLength) {
  for (const int damage : {1, 0x80}) {
    Bytes damaged = gzip(noise(300));
    damaged[damaged.size() - 4] ^= static_cast<std::uint8_t>(damage);
    EXPECT_ERROR(inflate_gzip(damaged, kLimit, "x.gz"), DataError, "incorrect length check");
  }
}

TEST(InflateGzip, RefusesALengthThatClaimsGigabytes) {
  Bytes damaged = gzip(noise(300));
  damaged.back() = 0xff;
  EXPECT_ERROR(inflate_gzip(damaged, SIZE_MAX, "x.gz"), DataError, "incorrect length check");
}

TEST(InflateGzip, RefusesWhatDoesNotBeginLikeGzip) {
  EXPECT_ERROR(inflate_gzip(bytes_of("plain text"), kLimit, "x.gz"), DataError,
               "x.gz: expected an intact gzip stream, got incorrect header check near byte 2");
}

TEST(InflateGzip, RefusesTrailingBytes) {
  Bytes bytes = gzip(noise(300));
  const std::string size = std::to_string(bytes.size());
  bytes.push_back(0);
  EXPECT_ERROR(inflate_gzip(bytes, kLimit, "x.gz"), DataError,
               "x.gz: expected one gzip stream of " + size + " bytes, got " +
                   std::to_string(bytes.size()) + " bytes");
}

TEST(InflateGzip, RefusesASecondStream) {
  Bytes bytes = gzip(noise(300));
  const Bytes second = gzip(noise(10));
  bytes.insert(bytes.end(), second.begin(), second.end());
  EXPECT_ERROR(inflate_gzip(bytes, kLimit, "x.gz"), DataError, "expected one gzip stream of ");
}

TEST(ReadGzipOrPlain, ReadsAPlainFile) {
  const TemporaryFolder folder;
  const auto file = read_gzip_or_plain(folder.write("x", as_bytes(noise(200'000))), kLimit);
  EXPECT_EQ(file.bytes, noise(200'000));
  EXPECT_EQ(file.file_sha256, sha256_hex(as_bytes(noise(200'000))));
}

TEST(ReadGzipOrPlain, ReadsAnEmptyFile) {
  const TemporaryFolder folder;
  EXPECT_TRUE(read_gzip_or_plain(folder.write("x", ""), kLimit).bytes.empty());
}

TEST(ReadGzipOrPlain, InflatesByContentNotByName) {
  const TemporaryFolder folder;
  const Bytes compressed = gzip(noise(300));
  const auto file = read_gzip_or_plain(folder.write("x.bin", as_bytes(compressed)), kLimit);
  EXPECT_EQ(file.bytes, noise(300));
  EXPECT_EQ(file.file_sha256, sha256_hex(as_bytes(compressed)));  // as it lies on disk
}

TEST(ReadGzipOrPlain, TakesALimitThatOverflowsWithItsMargin) {
  const TemporaryFolder folder;
  const std::string path = folder.write("x", as_bytes(noise(200'000)));
  const std::size_t limit = SIZE_MAX / 17 * 16 + 16;  // with a sixteenth more, 2^64 + 16
  EXPECT_EQ(read_gzip_or_plain(path, limit).bytes, noise(200'000));
}

TEST(ReadGzipOrPlain, NamesAMissingFile) {
  const TemporaryFolder folder;
  EXPECT_ERROR(read_gzip_or_plain(folder.file("x"), kLimit), DataError,
               folder.file("x") +
                   ": expected a readable file, got No such file or directory; "
                   "hint: check the path and its permissions");
}

TEST(ReadGzipOrPlain, RefusesAFolder) {
  const TemporaryFolder folder;
  EXPECT_ERROR(read_gzip_or_plain(folder.path(), kLimit), DataError,
               folder.path() + ": expected a readable file, got Is a directory");
}

TEST(ReadGzipOrPlain, AcceptsAPlainFileOfExactlyTheLimit) {
  const TemporaryFolder folder;
  const std::string path = folder.write("x", as_bytes(noise(5000)));
  EXPECT_EQ(read_gzip_or_plain(path, 5000).bytes, noise(5000));
}

TEST(ReadGzipOrPlain, RefusesAPlainFileAboveTheLimit) {
  const TemporaryFolder folder;
  const std::string path = folder.write("x", as_bytes(noise(5001)));
  EXPECT_ERROR(read_gzip_or_plain(path, 5000), DataError,
               path + ": expected at most 5000 bytes of content, got more");
}

TEST(ReadGzipOrPlain, StopsReadingAFileWithoutEnd) {
  EXPECT_ERROR(read_gzip_or_plain("/dev/zero", kLimit), DataError,
               "/dev/zero: expected at most 1000000 bytes of content, got more");
}

TEST(ReadGzipOrPlain, NamesADamagedFile) {
  const TemporaryFolder folder;
  Bytes damaged = gzip(noise(300));
  damaged.pop_back();
  const std::string path = folder.write("x.gz", as_bytes(damaged));
  EXPECT_ERROR(read_gzip_or_plain(path, kLimit), DataError,
               path + ": expected a complete gzip stream");
}

}  // namespace
}  // namespace mnist
