// SPDX-License-Identifier: Apache-2.0
#include "mnist/files.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "ladder/core/error.h"
#include "mnist/gzip_file.h"

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

std::string find_file(const std::string& root, const std::string& plain_name) {
  const std::string plain = (std::filesystem::path(root) / plain_name).string();
  const std::string compressed = plain + ".gz";
  for (const auto& path : {compressed, plain}) {
    std::error_code ignored;  // a file whose status is unknown counts as missing
    if (std::filesystem::exists(path, ignored)) return path;
  }
  throw DataError::missing_file(
      compressed, fmt::format("neither {0}.gz nor {0} is there; pass --data-root FOLDER (the "
                              "repository has the files in data/mnist)",
                              plain_name));
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

std::string unknown_set(std::string_view kind, const std::string& sha256) {
  return fmt::format("unknown set (sha256 of {} {}…)", kind, sha256.substr(0, 12));
}

}  // namespace

Files read_files(const std::string& root, Split split) {
  const KnownSplit& known = split == Split::kTrain ? kTrain : kTest;
  const std::string images_path =
      find_file(root, fmt::format("{}-images-idx3-ubyte", known.prefix));
  const std::string labels_path =
      find_file(root, fmt::format("{}-labels-idx1-ubyte", known.prefix));
  FileBytes images = read_gzip_or_plain(images_path, kLargestImages);
  FileBytes labels = read_gzip_or_plain(labels_path, kLargestLabels);

  Files files;
  files.images = parse_idx_images(std::move(images.bytes), images_path);
  files.labels = parse_idx_labels(std::move(labels.bytes), labels_path);
  check_shapes(files, images_path, labels_path);

  if (!known.images.is(images.file_sha256)) {
    files.description = unknown_set("images", images.file_sha256);
  } else if (!known.labels.is(labels.file_sha256)) {
    files.description = unknown_set("labels", labels.file_sha256);
  } else {
    files.known = true;
    files.description = fmt::format("MNIST {}, {} images", known.name, files.images.count);
  }
  return files;
}

}  // namespace mnist
