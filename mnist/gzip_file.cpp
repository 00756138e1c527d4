// SPDX-License-Identifier: Apache-2.0
#include "mnist/gzip_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/sha256.h"

namespace mnist {
namespace {

using namespace ladder;

constexpr const char* kFetchAgain = "fetch the file again";

DataError unreadable(const std::string& path) {
  return DataError::mismatch(path, "a readable file", std::strerror(errno),
                             "check the path and its permissions");
}

DataError too_large(const std::string& name, std::size_t size_limit) {
  return DataError::mismatch(name, fmt::format("at most {} bytes of content", size_limit), "more",
                             "this is not the file that the program reads here");
}

// Deflate adds at most a few bytes to each block of input it cannot compress.
std::size_t compressed_limit(std::size_t size_limit) {
  size_limit = std::min(size_limit, std::numeric_limits<std::size_t>::max() / 2);
  return size_limit + size_limit / 16 + 65536;
}

std::vector<std::uint8_t> read_whole(const std::string& path, std::size_t size_limit) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             std::fclose);
  if (!file) throw unreadable(path);
  const std::size_t file_limit = compressed_limit(size_limit);
  std::vector<std::uint8_t> bytes;
  for (std::size_t size = 0, count = 1; count > 0; size += count) {
    if (size > file_limit) throw too_large(path, size_limit);
    bytes.resize(size + std::max(size, std::size_t{65536}));
    count = std::fread(bytes.data() + size, 1, bytes.size() - size, file.get());
    if (count == 0) bytes.resize(size);
  }
  if (std::ferror(file.get()) != 0) throw unreadable(path);
  return bytes;
}

bool has_gzip_magic(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

// One inflation of a whole stream into a vector that grows as needed.
class Inflater {
 public:
  Inflater(std::span<const std::uint8_t> bytes, std::size_t size_limit)
      : size_limit_(size_limit), input_size_(bytes.size()), output_(first_size(bytes)) {
    constexpr int kGzipWrapper = 16;
    if (inflateInit2(&stream_, MAX_WBITS + kGzipWrapper) != Z_OK) throw std::bad_alloc();
    stream_.next_in = const_cast<Bytef*>(bytes.data());  // zlib only reads it
    stream_.avail_in = static_cast<uInt>(bytes.size());
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // zlib's status after the last byte it could read or write.
  int run() {
    int status = Z_OK;
    while (status == Z_OK) {
      if (size_ == output_.size()) output_.resize(std::min(size_limit_, 2 * size_ + 65536));
      const auto room = static_cast<uInt>(std::min<std::size_t>(output_.size() - size_, 1U << 30));
      stream_.next_out = output_.data() + size_;
      stream_.avail_out = room;
      status = inflate(&stream_, Z_NO_FLUSH);
      size_ += room - stream_.avail_out;
    }
    return status;
  }

  bool full() const { return size_ == size_limit_; }
  std::size_t consumed() const { return input_size_ - stream_.avail_in; }
  const char* message() const { return stream_.msg != nullptr ? stream_.msg : "nonsense"; }

  std::vector<std::uint8_t> take_output() {
    output_.resize(size_);
    return std::move(output_);
  }

 private:
  // The stream's last four bytes say the size of its content. They may lie, so they count
  // only up to what so many bytes can inflate to.
  std::size_t first_size(std::span<const std::uint8_t> bytes) const {
    constexpr std::size_t kLargestRatio = 1032;
    std::size_t claimed = 0;
    for (const std::uint8_t byte : bytes.last(std::min<std::size_t>(4, bytes.size()))) {
      claimed = claimed >> 8 | std::size_t{byte} << 24;
    }
    return std::min({claimed, size_limit_, kLargestRatio * bytes.size()});
  }

  z_stream stream_{};
  std::size_t size_limit_;
  std::size_t input_size_;
  std::vector<std::uint8_t> output_;
  std::size_t size_ = 0;  // bytes of output_ that are content
};

}  // namespace

FileBytes read_gzip_or_plain(const std::string& path, std::size_t size_limit) {
  FileBytes file{read_whole(path, size_limit), ""};
  file.file_sha256 = sha256_hex(std::as_bytes(std::span(file.bytes)));
  if (has_gzip_magic(file.bytes)) file.bytes = inflate_gzip(file.bytes, size_limit, path);
  if (file.bytes.size() > size_limit) throw too_large(path, size_limit);
  return file;
}

std::vector<std::uint8_t> inflate_gzip(std::span<const std::uint8_t> bytes, std::size_t size_limit,
                                       const std::string& name) {
  if (bytes.size() > std::numeric_limits<uInt>::max()) throw too_large(name, size_limit);
  Inflater inflater(bytes, size_limit);
  const int status = inflater.run();
  const std::size_t consumed = inflater.consumed();
  if (status == Z_MEM_ERROR) throw std::bad_alloc();
  if (status == Z_BUF_ERROR && inflater.full()) throw too_large(name, size_limit);
  if (status == Z_BUF_ERROR) {
    throw DataError::mismatch(name, "a complete gzip stream",
                              fmt::format("its end after {} bytes", consumed), kFetchAgain);
  }
  if (status != Z_STREAM_END) {
    throw DataError::mismatch(name, "an intact gzip stream",
                              fmt::format("{} near byte {}", inflater.message(), consumed),
                              kFetchAgain);
  }
  if (consumed < bytes.size()) {
    throw DataError::mismatch(name, fmt::format("one gzip stream of {} bytes", consumed),
                              fmt::format("{} bytes", bytes.size()), kFetchAgain);
  }
  return inflater.take_output();
}

}  // namespace mnist
