// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "mnist/idx.h"

namespace mnist {

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
// with ".gz" first, then without.
//
// Their SHA-256 decides whether they are the originals. Others of the same format, such as
// Fashion-MNIST, are read as well: `known` is then false and `description` contains the
// digest, so that the record of a run cannot confuse two sets.
//
// Throws DataError (exit code 3) if a file is missing or damaged, the images are not
// 28 x 28, or there are not as many labels as images.
//
// Python's counterpart: torchvision.datasets.MNIST.
Files read_files(const std::string& root, Split split);

}  // namespace mnist
