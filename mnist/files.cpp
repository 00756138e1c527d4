// SPDX-License-Identifier: Apache-2.0
#include "mnist/files.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/io/regular_file.h"
#include "ladder/io/sha256.h"

namespace mnist {
namespace {

using namespace ladder;

constexpr std::size_t kLargestImages = std::size_t{256} << 20;  // five times MNIST's training set
constexpr std::size_t kLargestLabels = std::size_t{1} << 20;

struct KnownFile {
  std::array<std::string_view, 2> sha256;  // compressed, plain

  bool is(const std::string& digest) const { return digest == sha256[0] || digest == sha256[1]; }
};

struct KnownSplit {
  std::string_view prefix;  // of the file names
  std::string_view name;    // for people
  KnownFile images;
  KnownFile labels;
};

constexpr KnownSplit kTrain = {
    "train",
    "train",
    {{"440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
      "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"}},
    {{"3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
      "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"}}};

constexpr KnownSplit kTest = {
    "t10k",
    "test",
    {{"8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
      "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"}},
    {{"f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
      "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"}}};

constexpr const char* kFetchAgain = "fetch the file again";

DataError too_large(const std::string& path, std::size_t size_limit) {
  return DataError::mismatch(path, fmt::format("at most {} bytes of content", size_limit), "more",
                             "this is not the file that the program reads here");
}

std::vector<std::uint8_t> read_whole(const std::string& path, std::size_t size_limit) {
  const auto file = open_data_file(path);
  // Deflate adds a few bytes to each block of input that it cannot compress.
  if (file.bytes > size_limit + size_limit / 16 + 65536) throw too_large(path, size_limit);
  std::vector<std::uint8_t> bytes(file.bytes);
  const int error = read_at(file, 0, std::as_writable_bytes(std::span(bytes)));
  if (error == 0) return bytes;
  throw DataError::mismatch(path, "a readable file", std::generic_category().message(error),
                            kFetchAgain);
}

bool is_gzip(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

// A gzip stream ends with the size of its content. Only a damaged one may state another, so it is
// inflated in one call into as many bytes and one more.
std::vector<std::uint8_t> inflate_gzip(std::span<const std::uint8_t> bytes, std::size_t size_limit,
                                       const std::string& path) {
  if (bytes.size() > std::numeric_limits<uInt>::max()) throw too_large(path, size_limit);
  std::size_t stated = 0;
  for (const auto byte : bytes.last(std::min<std::size_t>(4, bytes.size()))) {
    stated = stated >> 8 | std::size_t{byte} << 24;
  }
  std::vector<std::uint8_t> content(std::min(stated, size_limit) + 1);
  z_stream stream{};
  constexpr int kGzipWrapper = 16;
  if (inflateInit2(&stream, MAX_WBITS + kGzipWrapper) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, inflateEnd);
  stream.next_in = const_cast<Bytef*>(bytes.data());  // zlib only reads it
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = content.data();
  stream.avail_out = static_cast<uInt>(content.size());
  const int status = inflate(&stream, Z_FINISH);
  const std::size_t consumed = bytes.size() - stream.avail_in;
  if (status == Z_MEM_ERROR) throw std::bad_alloc();
  if (stream.total_out > size_limit) throw too_large(path, size_limit);
  if (status == Z_BUF_ERROR && stream.avail_out > 0) {
    throw DataError::mismatch(path, "a complete gzip stream",
                              fmt::format("its end after {} bytes", consumed), kFetchAgain);
  }
  if (status != Z_STREAM_END) {
    const char* problem = stream.msg != nullptr ? stream.msg : "more content than its end states";
    throw DataError::mismatch(path, "an intact gzip stream",
                              fmt::format("{} near byte {}", problem, consumed), kFetchAgain);
  }
  if (consumed < bytes.size()) {
    throw DataError::mismatch(path, fmt::format("one gzip stream of {} bytes", consumed),
                              fmt::format("{} bytes", bytes.size()), kFetchAgain);
  }
  content.resize(stream.total_out);
  return content;
}

std::string find_file(const std::string& root, Split split, std::string_view kind) {
  using enum std::filesystem::file_type;
  const auto paths = paths_of(root, split, kind);
  for (const auto& path : paths) {
    std::error_code ignored;  // as of a folder without permission: opening has the reason
    const auto type = std::filesystem::status(path, ignored).type();
    if (type != not_found && type != directory) return path;
  }
  throw DataError::missing_file(
      paths.front(),
      "neither there nor in raw/ or MNIST/raw/, with or without .gz; pass "
      "--data-root FOLDER (the repository has the files in data/mnist)");
}

void check_shapes(const Files& files, const std::string& images_path,
                  const std::string& labels_path) {
  const IdxImages& images = files.images;
  if (images.rows != 28 || images.columns != 28) {
    throw DataError::mismatch(images_path, "images of 28 x 28 pixels",
                              fmt::format("{} x {}", images.rows, images.columns),
                              "the networks are made for MNIST's size");
  }
  const auto labels = static_cast<std::int64_t>(files.labels.labels.size());
  if (labels != images.count) {
    throw DataError::mismatch(labels_path, fmt::format("{} labels, one per image", images.count),
                              fmt::format("{}", labels), "take both files from the same set");
  }
}

constexpr std::uint64_t kFormulaTrain = 12'800;
constexpr std::uint64_t kFormulaTest = 2'000;
using Tiles = std::array<int, 49>;

int formula_byte(std::uint64_t n) {
  std::uint64_t z = (n + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return static_cast<int>((z ^ (z >> 31U)) >> 56U);
}

Tiles tiles_of(std::uint64_t image) {
  Tiles tiles;
  for (std::size_t t = 0; t < tiles.size(); ++t) tiles[t] = formula_byte((image + 1) * 1024 + t);
  return tiles;
}

std::uint8_t label_of(const Tiles& tiles) {
  static const auto weights = [] {
    std::array<Tiles, 10> all;
    for (std::size_t c = 0; c < 10; ++c) {
      for (std::size_t t = 0; t < 49; ++t) all[c][t] = formula_byte(49 * c + t) - 128;
    }
    return all;
  }();
  std::array<int, 10> sums{};
  for (std::size_t c = 0; c < 10; ++c) {
    for (std::size_t t = 0; t < 49; ++t) sums[c] += weights[c][t] * (tiles[t] - 128);
  }
  return static_cast<std::uint8_t>(std::ranges::max_element(sums) - sums.begin());
}

}  // namespace

std::vector<std::string> paths_of(const std::string& root, Split split, std::string_view kind) {
  const auto prefix = split == Split::kTrain ? kTrain.prefix : kTest.prefix;
  std::vector<std::string> paths;
  for (const char* folder : {"", "raw", "MNIST/raw"}) {
    for (const char* separator : {"-", "."}) {
      const auto name =
          fmt::format("{}-{}{}idx{}-ubyte", prefix, kind, separator, kind == "images" ? 3 : 1);
      const auto path = (std::filesystem::path(root) / folder / name).string();
      paths.insert(paths.end(), {path + ".gz", path});
    }
  }
  return paths;
}

FileBytes read_gzip_or_plain(const std::string& path, std::size_t size_limit) {
  FileBytes file{read_whole(path, size_limit), ""};
  file.file_sha256 = sha256_hex(std::as_bytes(std::span(file.bytes)));
  if (is_gzip(file.bytes)) file.bytes = inflate_gzip(file.bytes, size_limit, path);
  if (file.bytes.size() > size_limit) throw too_large(path, size_limit);
  return file;
}

Files read_files(const std::string& root, Split split) {
  const KnownSplit& known = split == Split::kTrain ? kTrain : kTest;
  const std::string images_path = find_file(root, split, "images");
  const std::string labels_path = find_file(root, split, "labels");
  FileBytes images = read_gzip_or_plain(images_path, kLargestImages);
  FileBytes labels = read_gzip_or_plain(labels_path, kLargestLabels);

  Files files;
  files.images = parse_idx_images(std::move(images.bytes), images_path);
  files.labels = parse_idx_labels(std::move(labels.bytes), labels_path);
  check_shapes(files, images_path, labels_path);

  files.known = known.images.is(images.file_sha256) && known.labels.is(labels.file_sha256);
  files.description = files.known
                          ? fmt::format("MNIST {}, {} images", known.name, files.images.count)
                          : fmt::format("unknown set (sha256 of images {:.12}…, of labels {:.12}…)",
                                        images.file_sha256, labels.file_sha256);
  return files;
}

Files formula_files(Split split) {
  const bool trains = split == Split::kTrain;
  const std::uint64_t first = trains ? 0 : kFormulaTrain;
  const std::uint64_t count = trains ? kFormulaTrain : kFormulaTest;
  Files files;
  files.images = {.count = static_cast<std::int64_t>(count), .rows = 28, .columns = 28};
  files.images.pixels.resize(count * 784);
  files.labels.labels.resize(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto tiles = tiles_of(first + i);
    files.labels.labels[i] = label_of(tiles);
    for (std::uint64_t p = 0; p < 784; ++p) {
      const auto tile = tiles[p / 28 / 4 * 7 + p % 28 / 4];
      const auto noise = formula_byte((first + i + 1) * 1024 + 64 + p);
      files.images.pixels[i * 784 + p] = static_cast<std::uint8_t>((3 * tile + noise) / 4);
    }
  }
  files.description = fmt::format("formula {}, {} images", trains ? "train" : "test", count);
  return files;
}

}  // namespace mnist
