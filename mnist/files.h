// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mnist/idx.h"

namespace mnist {

struct FileBytes {
  std::vector<std::uint8_t> bytes;  // the content, inflated if it was compressed
  std::string file_sha256;          // of the file on disk, compressed or not
};

// Reads a file, and inflates it if it begins with gzip's magic number, whatever its name. A file is
// read whole and found intact, or refused: throws DataError (exit code 3), which begins with
// `path`, if the file
//   - is missing or unreadable,
//   - holds more than `size_limit` bytes of content: no more than that is inflated,
//   - is a gzip stream that is damaged or truncated, by its length and its CRC-32,
//   - goes on after the gzip stream (gzip allows several in a file; data sets have one).
// Source of the format: RFC 1952, by way of zlib.
FileBytes read_gzip_or_plain(const std::string& path, std::size_t size_limit);

enum class Split { kTrain, kTest };

struct Files {
  IdxImages images;         // 28 x 28 pixels each
  IdxLabels labels;         // as many as images
  bool known = false;       // both files are those of MNIST, byte for byte, and of this split
  std::string description;  // for people and records: "MNIST train, 60000 images"
};

// Reads the images and labels of one split of MNIST from a folder.
//
// The files keep the names they have had since 1998: train-images-idx3-ubyte,
// train-labels-idx1-ubyte, and t10k-... for the test split. Each is searched for
// with ".gz" first, then without; then as train-images.idx3-ubyte; then in the folders of
// torchvision.datasets.MNIST, raw and MNIST/raw.
//
// Their SHA-256 decides whether they are the originals. Others of the same format, such as
// Fashion-MNIST, are read as well: `known` is then false and `description` contains the
// digests of both, so that ranks, a resume and the record of a run cannot confuse two sets.
//
// Throws DataError (exit code 3) if a file is missing or damaged, the images are not
// 28 x 28, or there are not as many labels as images.
//
// Python's counterpart: torchvision.datasets.MNIST.
Files read_files(const std::string& root, Split split);

// Images of a formula instead of files, 12,800 to train and 2,000 to test: mosaics of 7 x 7 tiles
// with noise, and labels that a linear function of the tiles gives. All arithmetic is in integers,
// so bench/peers/common.py makes the same bytes.
//
//     byte(n)          the first 8 bits of number n, from 0, of SplitMix64 with seed 0
//     tile t of i      byte((i + 1) * 1024 + t), where the images to test follow those to train
//     pixel p of i     (3 * the tile that has it + byte((i + 1) * 1024 + 64 + p)) / 4
//     label of i       the c of 0 ... 9 with the largest sum over t, the first of equal ones, of
//                      (byte(49 * c + t) - 128) * (tile t of i - 128)
//
// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
Files formula_files(Split split);

// Where it searches for the "images" or "labels", in this order.
std::vector<std::string> paths_of(const std::string& root, Split split, std::string_view kind);

}  // namespace mnist
